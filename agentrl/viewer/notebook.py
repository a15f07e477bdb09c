"""The page of an export in a frame: runs, evaluations and episodes as a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from agentrl.evaluation.figures import Evaluation
from agentrl.run.open_run import Run
from agentrl.store.read_episode import RunEpisode
from agentrl.viewer.export import page_of
from agentrl.viewer.queries import ShownRun

SHOWN_EPISODES = 10
"""Episodes of a run that a notebook shows."""


def run_html(run: Run) -> str:
    """Return what a notebook shows of a run or an evaluation's directory: its figures, and its newest episodes."""
    shown = ShownRun(run.path)
    episodes = run.episodes(limit=SHOWN_EPISODES, newest_first=True) if (run.path / "store.sqlite").is_file() else []
    return _framed(run.path.name, map(shown.read, episodes), shown.figures().items())


def episode_html(episode: RunEpisode) -> str:
    """Return what a notebook shows of an episode."""
    return _framed(f"episode {episode.id}", [ShownRun(episode.source.path).read(episode)])


def evaluation_html(evaluation: Evaluation) -> str:
    """Return what a notebook shows of an evaluation: its figures, and the first of its episodes that were kept."""
    kept = [episode.kept for episode in evaluation.episodes if episode.kept][:SHOWN_EPISODES]
    shown = ShownRun(kept[0].source.path) if kept else None
    return _framed("evaluation", map(shown.read, kept) if shown else (), evaluation.to_table().items())


def _framed(title: str, episodes: Iterable[dict[str, Any]], figures: Iterable[tuple[str, object]] = ()) -> str:
    """Return the page of an export within a frame, so that a notebook shows it with its own style and policy, and nothing of it can reach the notebook."""
    page = b"".join(page_of(title, episodes, figures)).decode()
    return f'<iframe sandbox="" width="100%" height="600" srcdoc="{escape(page)}"></iframe>'
