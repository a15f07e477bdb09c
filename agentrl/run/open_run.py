"""A run as it is read from Python: from its directory, while it goes on or after, and without disturbing it.

open_run(path) ─► Run ─► config, metrics, summary, checkpoints          files of the run directory
                   └───► episodes ─► transcript, trajectories           its store, opened for each question and closed
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, StoreError, UsageError
from agentrl.models.text import TokenText, token_text
from agentrl.record.end_reason import EndReason
from agentrl.run.run_directory import (
    FAILURE,
    SUMMARY,
    read_config,
    read_metrics,
    read_summary,
    step_of,
    whole_checkpoints,
)
from agentrl.store.database import reading
from agentrl.store.episodes import list_episodes
from agentrl.store.read_episode import RunEpisode
from agentrl.store.rewards import best_checkpoint
from agentrl.store.store import Store
from agentrl.system.locks import DirectoryInUseError, check_unlocked

FAILED = "failed"
"""The reason by which a user asks for all but FINISHED."""
_CONDITIONS = {
    "id": "e.id = ?",
    "task": "g.task = ?",
    "group": "e.group_id = ?",
    "session": "g.task_digest = ?",
    "step": "g.step = ?",
    "reason": "e.reason = ?",
    "min_reward": "e.reward >= ?",
    "max_reward": "e.reward <= ?",
    "min_staleness": "g.step - 1 - g.version >= ?",
    "best_of_group": "(e.id IN (SELECT id FROM (SELECT id, MAX(reward) FROM episodes WHERE reason = 'finished' GROUP BY group_id))) = ?",
}


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint that is kept: a Hugging Face directory, to be used as a model."""

    step: int
    path: Path
    best: bool = False
    """Whether it has the best reward of those kept, as far as that is known."""


@dataclass(frozen=True, repr=False)
class Run:
    """A run, read from its directory. Everything is read when it is asked for, so a run that goes on shows its newest state."""

    path: Path

    @property
    def config(self) -> RunConfig:
        """The configuration of its newest start.

        Raises:
            StoreError: It cannot be read.
        """
        return read_config(self.path)

    @property
    def status(self) -> Literal["running", "finished", "failed", "stopped"]:
        """Whether it goes on, came to its end, or failed or was stopped before that: `train(run.config, resume=True)` then goes on."""
        try:
            check_unlocked(self.path)
        except DirectoryInUseError:
            return "running"
        if self.failure:
            return "failed"
        return "finished" if (self.path / SUMMARY).is_file() else "stopped"

    @property
    def failure(self) -> str:
        """The error that ended its newest start; "": none did."""
        path = self.path / FAILURE
        return path.read_text() if path.is_file() else ""

    @property
    def step(self) -> int:
        """The last training step that was taken."""
        return max((row["step"] for row in read_metrics(self.path)), default=0)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every training step, in order. docs/metrics.md explains them."""
        return read_metrics(self.path)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The metrics of the whole run; None before its end.

        Raises:
            StoreError: They cannot be read.
        """
        return read_summary(self.path)

    @property
    def checkpoints(self) -> list[RunCheckpoint]:
        """The checkpoints that are kept, oldest first."""
        if not (self.path / "store.sqlite").is_file():  # a supervised warm start
            return [RunCheckpoint(step_of(path), path) for path in whole_checkpoints(self.path)]
        with self.open_store() as store:
            kept, best = store.kept_checkpoints(), store.read(best_checkpoint)
        best_step = best["step"] if best else None
        return [RunCheckpoint(step, path, step == best_step) for step, path in kept]

    def episodes(
        self,
        *,
        task: int | None = None,
        group: int | None = None,
        reason: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        limit: int | None = None,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[RunEpisode]:
        """Return the episodes that fit, failed attempts included. Their tokens are read when they are asked for.

        Args:
            task: Index of the task.
            group: Id of the group.
            reason: How they ended: an `EndReason`, such as "finished", or "failed" for all others.
            min_reward: The least reward.
            max_reward: The largest reward.
            limit: How many, at most.
            offset: How many are passed over first.
            newest_first: Begin with those that ended last.

        Raises:
            StoreError: The run has no episodes that can be read.
            UsageError: There is no such reason.
        """
        if reason not in (None, FAILED, *EndReason):
            raise UsageError(f"reason = {reason!r}: no episode has it; use {FAILED} or one of {', '.join(EndReason)}")
        where = conditions(task=task, group=group, reason=reason, min_reward=min_reward, max_reward=max_reward)
        return self.listed(where, limit=limit, offset=offset, order="newest" if newest_first else "oldest")

    def episode(self, episode_id: int) -> RunEpisode:
        """Return one episode, by its id.

        Raises:
            StoreError: There is none of this id, or the run has no store.
        """
        if found := self.listed(conditions(id=episode_id)):
            return found[0]
        with self.open_store() as store:
            (last,) = store.read(lambda db: db.execute("SELECT MAX(id) FROM episodes").fetchone())
        raise StoreError(f"{self.path} holds no episode {episode_id}; its episodes are 1 to {last}")

    def listed(self, where: Mapping[str, Any], **order: Any) -> list[RunEpisode]:
        """Return the episodes that fit conditions of the store, and in that order, as `list_episodes` takes both.

        Raises:
            StoreError: The run has no episodes that can be read.
        """
        with self.open_store() as store, reading("the list of episodes", self.path):
            rows = store.read(lambda db: list_episodes(db, where, **order))
        return [RunEpisode(**vars(row), source=self) for row in rows]

    @contextmanager
    def open_store(self) -> Iterator[Store]:
        """Open the run's store to read from it. Hold it for as short as can be: the run waits for its readers now and then.

        Raises:
            StoreError: The run has none, or it cannot be read.
        """
        path = self.path / "store.sqlite"
        if not path.is_file():
            raise StoreError(
                f"{self.path} holds no store.sqlite, so it has no episodes: it is a supervised warm start, or not a whole run"
            )
        with Store(path, read_only=True) as store:
            yield store

    @cached_property
    def text(self) -> TokenText:
        """The text of token ids, by the tokenizer of the run's model. Raises ConfigError when there is no tokenizer any more."""
        return token_text([Path(self.config.model.path), *(found.path for found in reversed(self.checkpoints))])

    def __repr__(self) -> str:
        try:
            return f"<Run {self.path}  status: {self.status}, step: {self.step} of {self.config.steps}>"
        except (AgentRLError, OSError) as error:
            return f"<Run {self.path}  {error}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        from agentrl.viewer.export import run_html  # the page stands above, and is loaded by who looks at it

        return run_html(self)


def conditions(**filters: Any) -> dict[str, Any]:
    """Return filters of episodes, of which one that is None lets all pass, as `list_episodes` takes them."""
    where = {condition: filters.get(name) for name, condition in _CONDITIONS.items()}
    if filters.get("reason") == FAILED:
        where |= {_CONDITIONS["reason"]: None, "e.reason != ?": EndReason.FINISHED}
    return where


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open the run in a directory to read it, whether it goes on, came to its end or was killed. Nothing of it is changed.

    Args:
        path: The run directory.

    Raises:
        StoreError: There is no run in it.
    """
    directory = Path(path).absolute()
    if not any((directory / name).is_file() for name in ("config.json", "store.sqlite")):
        raise StoreError(
            f"{directory} holds no run; name the directory that `run_dir` said, or agentrl train printed; agentrl runs {directory} lists those below it"
        )
    return Run(directory)
