"""The directory of an evaluation: what was said in its episodes, to be read afterwards, and gone on with.

    store.sqlite    the store of a run (`agentrl.store.store`), in which each task is a group and nothing is trained
    config.json     the configuration of its newest start
    summary.json    the figures, once it has come to its end
    lock            held by the evaluation that goes on in it

`agentrl.open_run` reads it like a run's directory. Only the user who evaluates can read it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, config_text
from agentrl.errors import AgentRLError, ConfigError, DiskError, StoreError
from agentrl.evaluation.figures import EvaluatedEpisode, Evaluation, evaluated_episode
from agentrl.models.text import TokenText, token_text
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.database import open_database, reading
from agentrl.store.episodes import ListedEpisode, list_episodes
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode, sample_replies
from agentrl.store.store import Store
from agentrl.system.files import make_directory, write_whole
from agentrl.system.locks import DirectoryInUseError, lock_directory

NAMED_BY_TIME = "evaluations/%Y-%m-%d-%H%M%S"
"""The directory of an evaluation that none is named for, as `time.strftime` takes it."""


@dataclass(frozen=True)
class EvaluationDirectory:
    """The directory of an evaluation, as an `agentrl.store.read_episode.EpisodeSource`."""

    path: Path
    config: RunConfig

    @cached_property
    def text(self) -> TokenText:
        """The text of token ids, by the tokenizer of the model. Raises ConfigError when there is no tokenizer any more."""
        return token_text([Path(self.config.model.path)])


class KeptEpisodes:
    """The episodes of a running evaluation, each kept when it has ended. Its directory is locked as long.

    Use it as a context manager. Its calls block for about a millisecond; call them in a worker thread.

    Args:
        path: The directory, which is made if it is not there.
        identity: What is evaluated. A directory that is there already must hold the same.
        config: The configuration, with the model's directory in `model.path`.

    Raises:
        ConfigError: The directory holds something else, another evaluation goes on in it, or it cannot be written.
        StoreError: What is in it is damaged.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], config: RunConfig) -> None:
        self.directory = EvaluationDirectory(path.absolute(), config)
        is_what = _EVALUATION + json.dumps(dict(identity)) + "}"
        self._open = ExitStack()
        try:
            with _writable(path):
                make_directory(path, 0o700)
                if not (path / "store.sqlite").exists() and any(file.name != "lock" for file in path.iterdir()):
                    raise ConfigError(_something_else(path))
                self._open.callback(os.close, lock_directory(path))
                self._store = self._open.enter_context(Store(path / "store.sqlite"))
            if self._store.restart and self._store.read(_tasks_of) != is_what:
                raise ConfigError(_something_else(path))
            written = config_text(config)
            self._store.begin_restart(is_what, written)
            write_whole(path / "config.json", written)
            (path / "summary.json").unlink(missing_ok=True)
            with reading("the list of episodes", path):
                listed = self._store.read(lambda db: list_episodes(db, {"e.reason = ?": "finished"}))
        except BaseException:
            self._open.close()
            raise
        self.done = [self._evaluated(row) for row in listed]
        """The finished episodes of earlier starts. The failed ones are run again."""

    def add(self, task: int, episode_index: int, seed: int, outcome: Outcome) -> EvaluatedEpisode:
        """Keep one episode, and return it as it can be read. May be called in several threads."""
        _, added = self._store.write([OpenGroup(task, 0, task), InsertEpisode(task, episode_index, seed, outcome)])
        (row,) = self._store.read(lambda db: list_episodes(db, {"e.id = ?": added}))
        return self._evaluated(row)

    def finish(self, result: Evaluation) -> list[str]:
        """Keep the figures of the whole; return lines that show its best and its worst reply."""
        write_whole(self.directory.path / "summary.json", json.dumps(result.to_json(per_task=False)) + "\n")
        return list(sample_replies([episode.kept for episode in result.episodes if episode.kept]))

    def __enter__(self) -> KeptEpisodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _evaluated(self, row: ListedEpisode) -> EvaluatedEpisode:
        kept = RunEpisode(**vars(row), source=self.directory)
        return replace(evaluated_episode(row.task, row.episode_index, row), kept=kept)


def new_directory() -> Path:
    """Make a directory that is named by the time, and that no other evaluation has.

    Raises:
        ConfigError: It cannot be made.
    """
    first = Path(time.strftime(NAMED_BY_TIME))
    with _writable(first):
        make_directory(first.parent)
        for path in (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000))):
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return path
    raise ConfigError(f"`out`: {first} and those after it are taken; name another directory")


def check_no_evaluation(path: Path) -> None:
    """Check that a directory is not that of an evaluation. What else is wrong with a store in it, its reader says.

    Raises:
        StoreError: It is.
    """
    if is_evaluation(path):
        raise StoreError(
            f"{path} is of an evaluation, which is neither trained in, replayed nor audited: `agentrl eval` runs it again, "
            "`agentrl.open_run` reads its episodes, and a run needs another `run_dir`"
        )


def is_evaluation(path: Path) -> bool:
    """Return whether a directory is known to be that of an evaluation."""
    tasks = ""
    with suppress(AgentRLError, sqlite3.Error), closing(open_database(path / "store.sqlite", read_only=True)) as db:
        tasks = _tasks_of(db)
    return tasks.startswith(_EVALUATION)


_EVALUATION = '{"evaluation": '
"""What a store's note of its tasks begins with, if they are those of an evaluation."""


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except DirectoryInUseError as error:
        raise ConfigError(
            f"another evaluation goes on in `out` {path}; wait for it, or name another directory"
        ) from error
    except (OSError, DiskError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"`out` {path} cannot be written: {why}; name another directory") from error


def _something_else(path: Path) -> str:
    return f"`out` {path} holds something else than this evaluation; name another directory, or remove it"


def _tasks_of(db: Any) -> str:
    """Return a store's note of its tasks; "": it has none."""
    row = db.execute("SELECT value FROM run_values WHERE name = 'tasks'").fetchone()
    return "" if row is None else str(row[0])
