"""The directory of an evaluation, or of a service: what was said in its episodes, to be read afterwards, and gone on with.

    store.sqlite    the store of a run (`agentrl.store.store`), in which each task is a group and nothing is trained
    config.json     the configuration of its newest start
    summary.json    the figures, once it has come to its end
    lock            held by the evaluation or the service that goes on in it

`agentrl.open_run` reads it like a run's directory. Only the user who evaluates or serves can read it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, get_args

from agentrl.config.run import RunConfig, config_text
from agentrl.errors import AgentRLError, ConfigError, DiskError, StoreError
from agentrl.models.text import TokenText, token_text
from agentrl.record.end_reason import EndReason
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.database import open_database, reading
from agentrl.store.episodes import list_episodes
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode
from agentrl.store.store import Store
from agentrl.system.files import make_directory, write_whole
from agentrl.system.locks import DirectoryInUseError, lock_directory

Kind = Literal["evaluation", "service"]
"""What fills a directory whose episodes are not trained on: the key of its store's note of its tasks."""
NAMED_BY_TIME: dict[Kind, str] = {"evaluation": "evaluations/%Y-%m-%d-%H%M%S", "service": "runs/serve-%Y-%m-%d-%H%M%S"}
"""The directory of an evaluation or a service that none is named for, as `time.strftime` takes it."""


@dataclass(frozen=True)
class KeptEpisodes:
    """The episodes of an evaluation in the store of its directory, as their `agentrl.store.read_episode.EpisodeSource`.

    Its calls block for about a millisecond; call them in a worker thread.
    """

    path: Path
    config: RunConfig
    store: Store = field(compare=False)

    @cached_property
    def text(self) -> TokenText:
        """The text of token ids, by the tokenizer of the model. Raises ConfigError when there is no tokenizer any more."""
        return token_text([Path(self.config.model.path)])

    def finished(self) -> list[RunEpisode]:
        """Return the finished episodes of earlier starts. The failed ones are run again.

        Raises:
            StoreError: They are damaged.
        """
        with reading("the list of episodes", self.path):
            return self._listed("e.reason = ?", EndReason.FINISHED)

    def add(self, task: int, episode_index: int, seed: int, outcome: Outcome) -> RunEpisode:
        """Keep one episode, and return it as it can be read. May be called in several threads."""
        _, added = self.store.write([OpenGroup(task, 0, task), InsertEpisode(task, episode_index, seed, outcome)])
        return self._listed("e.id = ?", added)[0]

    def _listed(self, condition: str, value: Any) -> list[RunEpisode]:
        rows = self.store.read(lambda db: list_episodes(db, {condition: value}))
        return [RunEpisode(**vars(row), source=self) for row in rows]


@contextmanager
def keep_episodes(path: Path, identity: Mapping[str, Any], config: RunConfig) -> Iterator[KeptEpisodes]:
    """Hold the directory of an evaluation for the length of the context, and yield its episodes. Arguments and errors are those of `hold_store`."""
    with hold_store(path, "evaluation", identity, config) as store:
        yield KeptEpisodes(path.absolute(), config, store)


@contextmanager
def hold_store(path: Path, kind: Kind, identity: Mapping[str, Any], config: RunConfig) -> Iterator[Store]:
    """Hold a directory whose episodes are not trained on for the length of the context, and yield its store.

    Args:
        path: The directory, which is made if it is not there.
        kind: What fills it.
        identity: What its episodes are of. A directory that is there already must hold the same.
        config: The configuration, with the model's directory in `model.path`.

    Raises:
        ConfigError: The directory holds something else, another process fills it, or it cannot be written.
        StoreError: What is in it is damaged.
    """
    note = json.dumps({kind: dict(identity)})
    with ExitStack() as opened:
        with _writable(path, kind):
            make_directory(path, 0o700)
            if not (path / "store.sqlite").exists() and any(file.name != "lock" for file in path.iterdir()):
                raise ConfigError(_something_else(path, kind))
            opened.callback(os.close, lock_directory(path))
            store = opened.enter_context(Store(path / "store.sqlite"))
        before = store.read(_tasks_of) if store.restart else note
        if before != note:
            raise ConfigError(_something_else(path, kind, _difference(before, kind, identity)))
        written = config_text(config)
        store.begin_restart(note, written)
        write_whole(path / "config.json", written)
        (path / "summary.json").unlink(missing_ok=True)
        yield store


def new_directory(kind: Kind) -> Path:
    """Make a directory that is named by the time, and that nothing else has.

    Args:
        kind: What is to fill it.

    Raises:
        ConfigError: It cannot be made.
    """
    first = Path(time.strftime(NAMED_BY_TIME[kind]))
    with _writable(first, kind):
        make_directory(first.parent)
        for path in chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2))):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                break
    return path


def check_no_evaluation(path: Path) -> None:
    """Check that a directory is not that of an evaluation or a service. What else is wrong with a store in it, its reader says.

    Raises:
        StoreError: It is.
    """
    if kind := untrained_kind(path):
        command = "`agentrl eval` runs it again" if kind == "evaluation" else "`agentrl serve --out` goes on in it"
        raise StoreError(
            f"{path} is of {'an' if kind == 'evaluation' else 'a'} {kind}, which is neither trained in, replayed nor audited: {command}, "
            "`agentrl.open_run` reads its episodes, and a run needs another `run_dir`"
        )


def untrained_kind(path: Path) -> Kind | None:
    """Return what fills a directory whose episodes are not trained on; None where it is not known to be one."""
    tasks = ""
    with suppress(AgentRLError, sqlite3.Error), closing(open_database(path / "store.sqlite", read_only=True)) as db:
        tasks = _tasks_of(db)
    kinds: tuple[Kind, ...] = get_args(Kind)
    return next((kind for kind in kinds if tasks.startswith(f'{{"{kind}": ')), None)


@contextmanager
def _writable(path: Path, kind: Kind) -> Iterator[None]:
    try:
        yield
    except DirectoryInUseError as error:
        raise ConfigError(
            f"another {kind} goes on in `out` {path}, which is {error}; wait for it, or name another directory"
        ) from error
    except (OSError, DiskError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"`out` {path} cannot be written: {why}; name another directory") from error


def _something_else(path: Path, kind: Kind, difference: str = "") -> str:
    return f"`out` {path} holds something else than this {kind}{difference}; name another directory, or remove it"


def _difference(before: str, kind: Kind, identity: Mapping[str, Any]) -> str:
    """Return what differs between a store's note of its tasks and what is to fill it; "": it is of another kind."""
    if not before.startswith(f'{{"{kind}": '):
        return ""
    there = json.loads(before)[kind]
    differing = [
        f"{name} {there.get(name)!r} is not {value!r}" for name, value in identity.items() if there.get(name) != value
    ]
    return f": {', '.join(differing)}"


def _tasks_of(db: Any) -> str:
    """Return a store's note of its tasks; "": it has none."""
    row = db.execute("SELECT value FROM run_values WHERE name = 'tasks'").fetchone()
    return "" if row is None else str(row[0])
