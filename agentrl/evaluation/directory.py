"""The directory of an evaluation: what was said in its episodes, to be read afterwards, and gone on with.

    store.sqlite    the store of a run (`agentrl.rollout.store`), in which each task is a group and nothing is trained

`agentrl.open_run` reads it like a run's directory. Only the user who evaluates can read it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DiskError
from agentrl.evaluation.figures import EvaluatedEpisode
from agentrl.machine.disk import make_directory
from agentrl.models.text import TokenText, token_text
from agentrl.rollout.database import reading
from agentrl.rollout.episode_list import EpisodeFilter, list_episodes
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.read_episode import RunEpisode
from agentrl.rollout.store import Store

NAMED_BY_TIME = "evaluations/%Y-%m-%d-%H%M%S"
"""The directory of an evaluation that none is named for, as `time.strftime` takes it."""


@dataclass(frozen=True)
class EvaluationDirectory:
    """Where the episodes of an evaluation are read from: an `agentrl.rollout.read_episode.EpisodeSource`."""

    path: Path
    config: RunConfig

    @cached_property
    def text(self) -> TokenText:
        """The text of token ids, by the tokenizer of the model. Raises ConfigError when there is no tokenizer any more."""
        return token_text([Path(self.config.model.path)])

    @contextmanager
    def open_store(self) -> Iterator[Store]:
        """Open the store to read from it."""
        with Store(self.path / "store.sqlite", read_only=True) as store:
            yield store


class KeptEpisodes:
    """The episodes of an evaluation while it goes on: each is kept when it has ended.

    Use it as a context manager. Its calls block for about a millisecond; call them in a worker thread.

    Args:
        path: The directory, which is made if it is not there.
        identity: What is evaluated. A directory that is there already must hold the same.
        config: The configuration, with the model's directory in `model.path`.

    Raises:
        ConfigError: The directory holds something else, or cannot be written.
        StoreError: What is in it is damaged.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], config: RunConfig) -> None:
        self.directory = EvaluationDirectory(path.absolute(), config)
        is_what = json.dumps({"evaluation": dict(identity)})
        try:
            make_directory(path, 0o700)
            if any(path.iterdir()) and not (path / "store.sqlite").exists():
                raise _something_else(path)
            self._store = Store(path / "store.sqlite")
        except (OSError, DiskError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"`out` {path} cannot be written: {why}; name another directory") from error
        try:
            if self._store.restart and self._store.read(_tasks_of) != is_what:
                raise _something_else(path)
            self._store.begin_restart(is_what, config.model_dump_json(exclude={"run_dir"}))
            with reading("the list of episodes", path):
                listed = self._store.read(lambda db: list_episodes(db, EpisodeFilter(status="finished")))
        except BaseException:
            self._store.close()
            raise
        self.done = [self._evaluated(RunEpisode(self.directory, row)) for row in listed]
        """The finished episodes of earlier starts. The failed ones are run again."""

    def add(self, task: int, episode_index: int, seed: int, outcome: Outcome) -> EvaluatedEpisode:
        """Keep one episode, and return it as it can be read. May be called in several threads."""
        self._store.open_group(task, 0, task)
        added = self._store.add(task, episode_index, seed, outcome)
        (row,) = self._store.read(lambda db: list_episodes(db, EpisodeFilter(id=added)))
        return self._evaluated(RunEpisode(self.directory, row))

    def __enter__(self) -> KeptEpisodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    @staticmethod
    def _evaluated(kept: RunEpisode) -> EvaluatedEpisode:
        return EvaluatedEpisode(
            task=kept.task,
            episode_index=kept.episode_index,
            status=kept.status,
            reward=kept.reward,
            metrics=dict(kept.metrics),
            error=kept.error,
            duration_s=kept.duration_s,
            kept=kept,
        )


def new_directory() -> Path:
    """Return the path of a directory that is named by the time, and that is not there yet."""
    name = time.strftime(NAMED_BY_TIME)
    names = (Path(name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in names if not path.exists())


def _something_else(path: Path) -> ConfigError:
    return ConfigError(f"`out` {path} holds something else than this evaluation; name another directory, or remove it")


def _tasks_of(db: Any) -> str | None:
    row = db.execute("SELECT value FROM facts WHERE name = 'tasks'").fetchone()
    return None if row is None else str(row[0])
