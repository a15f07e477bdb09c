"""Show an evaluation while it goes on."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from agentrl.evaluation.figures import EvaluatedEpisode

SHOWN_PARTS = 10
"""Lines that a printed view gives an evaluation."""


@dataclass
class EvaluationView:
    """A view of an evaluation, for an observer to show. The evaluation sets `directory`, and calls `begin`, `on_episode` and `say`."""

    total: int = 0
    """Episodes that it has, those of an earlier start included."""
    episodes: list[EvaluatedEpisode] = field(default_factory=list)
    """The episodes that have ended, in the order of their ends."""
    directory: Path | None = None
    """Where they are kept; None until it is there."""

    def begin(self, total: int, done: list[EvaluatedEpisode]) -> None:
        """Note how many episodes there are, and which an earlier start has run."""
        self.total, self.episodes = total, [*done]

    def on_episode(self, episode: EvaluatedEpisode) -> None:
        """Note that an episode ended."""
        self.episodes.append(episode)

    def say(self, text: str) -> None:
        """Show what a user should read."""


class PrintedEvaluation(EvaluationView):
    """A view that prints some lines to standard error."""

    failed = 0
    """Failed episodes of this start."""

    def on_episode(self, episode: EvaluatedEpisode) -> None:
        """Print how far the evaluation is, each time that another part of it is done.

        It says nothing of rewards: those of the episodes that end first are no sample of all.
        """
        super().on_episode(episode)
        self.failed += episode.reason != "finished"
        ended = len(self.episodes)
        if ended * SHOWN_PARTS // self.total != (ended - 1) * SHOWN_PARTS // self.total:
            failed = f", {self.failed} failed" if self.failed else ""
            self.show_part(f"{ended} of {self.total} episodes{failed}")

    def show_part(self, text: str) -> None:
        """Show how far it is."""
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line."""
        print_line(text, sys.stderr)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print a line, by default to standard output, where there is somebody to read it."""
    with suppress(OSError):
        print(text, file=file, flush=True)
