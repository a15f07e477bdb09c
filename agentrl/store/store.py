"""The run's memory: every task handed out, every episode, and which checkpoint contains which batch. SQLite, in the run directory.

    group (a task)   open ─► ready ─► in a batch, whose checkpoint was made
                       └───► rejected, with the reason
    call             kept as it happens; a turn of its episode when that has ended, or deleted

An episode is committed before it counts as finished. A batch is entered in the transaction that records the checkpoint
which contains it: after a crash, groups that only lost steps had used are unused again, and none is trained on twice.
That transaction is durable: a power cut takes later ones at most, never a part of one. `agentrl.run.audit` proves that from these tables.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import StoreError
from agentrl.record.trajectory import TokenRecord
from agentrl.store.batches import TrainedStep, commit
from agentrl.store.changes import Change
from agentrl.store.database import RESTORE, create_database, files_at, open_database, reporting, transaction
from agentrl.store.episodes import FinishedEpisode
from agentrl.store.rewards import best_checkpoint, update_checkpoint_rewards
from agentrl.store.rows import CallRow, PackedRecord, record_fault

T = TypeVar("T")


class Store:
    """The store of one run directory. Its calls block for about a millisecond; call them in a worker thread.

    Each process start of the run is a restart, the first included: versions made in one say nothing about the weights of another. A store is made where
    there is none, unless it `must_exist`; opened `read_only`, it disturbs no run that goes on. Raises StoreError for a file that is missing, empty or no store, DiskError when
    the disk does not take what is written.
    """

    def __init__(self, path: Path, *, must_exist: bool = False, read_only: bool = False) -> None:
        self._lock = threading.Lock()
        self._path = path
        if not (must_exist or read_only) and not path.exists():
            create_database(path)
        self._db = open_database(path, read_only=read_only)
        self._files = files_at(path)
        with reporting(path):
            self.restart: int = self._db.execute("SELECT COALESCE(MAX(restart), 0) FROM restarts").fetchone()[0]

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._path.parent

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _writing(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._db, self._path, durable=durable) as db:
            yield db
        if durable:
            self.check_in_place()

    def check_in_place(self) -> None:
        """Check that the file is still the one that was opened: what is written to another is lost.

        Raises:
            StoreError: It was taken away or replaced.
        """
        if files_at(self._path) != self._files:
            raise StoreError(
                f"{self._path} was taken away or replaced while the run used it: what is written to it is lost. {RESTORE}."
            )

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.directory))

    def begin_restart(self, tasks: str = "", config: str = "{}") -> None:
        """Note that the run starts, or starts again, and that checkpoints only begun are gone.

        Args:
            tasks: What tells the run's tasks from others.
            config: The configuration, as JSON.

        Raises:
            StoreError: Its tasks are not those that it started with.
        """
        self.check_tasks(tasks)
        with self._writing(durable=True) as db:
            db.execute("INSERT OR IGNORE INTO run_values VALUES ('tasks', ?)", (tasks,))
            self.restart += 1
            db.execute("INSERT INTO restarts VALUES (?, ?, ?)", (self.restart, time.time(), config))
            db.execute("DELETE FROM begun_checkpoints")

    def check_tasks(self, tasks: str) -> None:
        """Check that `tasks` are those that the run started with.

        Raises:
            StoreError: They are not.
        """
        known = self._rows("SELECT value FROM run_values WHERE name = 'tasks'")
        if known not in ([], [(tasks,)]):
            raise StoreError(
                f"{self.directory} was started with other tasks ({known[0][0]}) than it has now ({tasks}): `tasks`, `data.order`, "
                "`data.sources`, `data.eval_share`, `seed` and `rollout.group_size` must stay as they were. Restore them, or start a new run."
            )

    def write(self, changes: Sequence[Change]) -> list[int]:
        """Commit what has happened, in its order, in one transaction.

        Returns:
            What `write` of each change returns.
        """
        with self._writing() as db:
            return [change.write(db, self.restart) for change in changes]

    def logged_calls(self, group_id: int, episode_index: int) -> list[CallRow]:
        """Return the replies of an episode that did not end, in the order in which they were committed."""
        where = "group_id = ? AND episode_index = ? AND episode IS NULL ORDER BY rowid"
        with self._lock:
            return self._calls(where, group_id, episode_index)

    def _calls(self, where: str, *values: int) -> list[CallRow]:
        found = self._db.execute(f"SELECT {', '.join(CallRow._fields)} FROM calls WHERE {where}", values)
        return list(map(CallRow._make, found))

    def _turns(self, episode: int) -> list[CallRow]:
        return self._calls("episode = ? ORDER BY turn", episode)

    def reject_episodes(self, vocabulary: int | None) -> list[str]:
        """Mark finished episodes that cannot be trained on as failed, and open their groups again, which are then completed or rejected.

        Args:
            vocabulary: Number of token ids that the model has; None: it is not known.

        Returns:
            What was set aside and why, for the user.
        """
        waiting = (
            "reason = 'finished' AND group_id IN (SELECT id FROM groups WHERE step IS NULL AND state != 'rejected')"
        )
        said = []
        with self._writing() as db:
            for episode in self._episodes(waiting):
                try:
                    fault = record_fault(episode.record, episode.reward, vocabulary)
                except ValueError as error:
                    fault = str(error)
                if fault is None:
                    continue
                said.append(f"episode {episode.id} is set aside, it cannot be trained on: {fault}")
                db.execute("UPDATE episodes SET reason = 'rejected', error = ? WHERE id = ?", (said[-1], episode.id))
                db.execute("UPDATE groups SET state = 'open', rejected = NULL WHERE id = ?", (episode.group_id,))
        return said

    def episodes(self, group_ids: Sequence[int]) -> list[FinishedEpisode]:
        """Return the finished episodes of some groups, by group and episode_index."""
        marks = ", ".join("?" * len(group_ids))
        with self._lock:
            found = self._episodes(f"reason = 'finished' AND group_id IN ({marks})", *group_ids)
        return [replace(episode, record=TokenRecord(episode.record.turns)) for episode in found]

    def record(self, episode_id: int) -> TokenRecord:
        """Return the token record of one episode, which is there. Raises ValueError when it cannot be read."""
        with self._lock:
            (episode,) = self._episodes("id = ?", episode_id)
        return TokenRecord(episode.record.turns)

    def _episodes(self, where: str, *values: int) -> list[FinishedEpisode]:
        """Return episodes whose records are not read yet."""
        columns = "id, restart, group_id, reward, replayed_tokens, record, prompt_ids"
        query = f"SELECT {columns} FROM episodes WHERE {where} ORDER BY group_id, episode_index, id"
        return [
            FinishedEpisode(*(*own, PackedRecord(record, prompt_ids, self._turns(own[0]))))
            for *own, record, prompt_ids in self._db.execute(query, values).fetchall()
        ]

    def begin_checkpoint(self, path: Path) -> None:
        """Note that a checkpoint is about to be written to `path`: until it is committed, it may be deleted."""
        with self._writing(durable=True) as db:
            db.execute("INSERT OR IGNORE INTO begun_checkpoints VALUES (?)", (self._relative(path),))

    def commit_checkpoint(self, path: Path, step: int, trained: Sequence[TrainedStep]) -> None:
        """Record a checkpoint, in the run directory, together with every batch `trained` since the one before.

        Raises StoreError if a group is in a batch already, or the steps do not go on from what is recorded.
        """
        with self._writing(durable=True) as db:
            where = self._relative(path)
            commit(db, self.restart, where, step, trained)
            db.execute("DELETE FROM begun_checkpoints WHERE path = ?", (where,))

    def mark_damaged(self, step: int, reason: str) -> None:
        """Note that a checkpoint cannot be loaded. It is not kept any more."""
        with self._writing(durable=True) as db:
            db.execute("UPDATE checkpoints SET damaged = ?, kept = 0 WHERE step = ?", (reason, step))

    def forget_checkpoints(self, keep: int) -> list[Path]:
        """Mark all but the newest `keep` checkpoints, and the best, as deleted, durably; returns the directories to delete."""
        with self._writing(durable=True) as db:
            update_checkpoint_rewards(db)
            rows = db.execute("SELECT step, path FROM checkpoints WHERE kept ORDER BY step DESC").fetchall()
            best = best_checkpoint(db)
            old = [(step, path) for step, path in rows[keep:] if best is None or step != best["step"]]
            db.executemany("UPDATE checkpoints SET kept = 0 WHERE step = ?", [(step,) for step, _ in old])
        return [self.directory / path for _, path in old]

    def forget_evaluations(self, step: int) -> None:
        """Forget the evaluations of steps after `step`, which a crash undid."""
        with self._writing() as db:
            db.execute("DELETE FROM evaluations WHERE step > ?", (step,))

    def kept_checkpoints(self) -> list[tuple[int, Path]]:
        """Return (step, directory) of the checkpoints that are kept, oldest first. None of them is known to be damaged."""
        kept = self._rows("SELECT step, path FROM checkpoints WHERE kept ORDER BY step")
        return [(step, self.directory / path) for step, path in kept]

    def unwanted_checkpoints(self) -> list[Path]:
        """Return the directories that may be deleted: of checkpoints that are not kept, or that were begun and never committed.

        One that is kept is never among them.
        """
        unwanted = self._rows(
            "SELECT path FROM checkpoints WHERE NOT kept AND damaged IS NULL UNION SELECT path FROM begun_checkpoints"
            " EXCEPT SELECT path FROM checkpoints WHERE kept"
        )
        return [self.directory / path for (path,) in unwanted]

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of a query that changes nothing."""
        with self._lock:
            return query(self._db)

    def _rows(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        with reporting(self._path), self._lock:
            return self._db.execute(query, values).fetchall()

    def task_digests(self) -> list[str]:
        """Return what tells the tasks of the groups 0, 1, ... from others."""
        return [digest for (digest,) in self._rows("SELECT task_digest FROM groups ORDER BY id")]

    def next_group_id(self) -> int:
        """Return one more than the largest group id ever used."""
        return int(self._rows("SELECT COALESCE(MAX(id) + 1, 0) FROM groups")[0][0])
