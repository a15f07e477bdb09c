"""The run's memory: every task handed out, every episode, and which checkpoint contains which batch. SQLite, in the run directory.

    group (a task)   open ─► ready ─► in a batch, whose checkpoint was made
                       └───► rejected, with the reason
    call             kept as it happens, until its episode is stored whole

An episode is committed before it counts as finished. A batch is entered in the transaction that records the checkpoint
which contains it: after a crash, groups that only lost steps had used are unused again, and none is trained on twice.
`agentrl.audit` proves that from these tables.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from agentrl.engine.protocol import Generation, VersionSpan
from agentrl.errors import DiskError, StoreError
from agentrl.proxy import RecordedChoice
from agentrl.rollout.rewards import score_checkpoints
from agentrl.rollout.run_episode import Outcome
from agentrl.trajectory import TokenRecord

T = TypeVar("T")
SCHEMA_VERSION = 3

_SCHEMA = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    task INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'rejected')),
    reason TEXT,
    step INTEGER REFERENCES batches (step),
    version INTEGER NOT NULL
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    life INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES groups (id),
    sample INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('finished', 'failed')),
    reward REAL NOT NULL,
    credited INTEGER NOT NULL,
    metrics TEXT NOT NULL,
    error TEXT,
    record BLOB NOT NULL,
    tokens INTEGER NOT NULL,
    interrupted_tokens INTEGER NOT NULL,
    replayed_tokens INTEGER NOT NULL,
    started_at REAL NOT NULL,
    duration_s REAL NOT NULL
);
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE UNIQUE INDEX finished_once ON episodes (group_id, sample) WHERE status = 'finished';
CREATE TABLE calls (
    group_id INTEGER NOT NULL REFERENCES groups (id),
    sample INTEGER NOT NULL,
    request TEXT NOT NULL,
    completion_id TEXT NOT NULL,
    choice INTEGER NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (group_id, sample, request, completion_id, choice)
);
CREATE TABLE batches (step INTEGER PRIMARY KEY, checkpoint INTEGER NOT NULL REFERENCES checkpoints (step));
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY,
    life INTEGER NOT NULL,
    path TEXT NOT NULL,
    score REAL,
    score_groups INTEGER NOT NULL DEFAULT 0,
    made_at REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE lives (life INTEGER PRIMARY KEY, started_at REAL NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True)
class StoredEpisode:
    """One episode as the trainer reads it."""

    id: int
    life: int
    group_id: int
    reward: float
    replayed_tokens: int
    """Tokens of an earlier life in it."""
    record: TokenRecord


@dataclass(frozen=True)
class EpisodeRow:
    """One episode, whole, with what came of it."""

    id: int
    group_id: int
    sample: int
    status: str
    reward: float
    error: str | None
    record: TokenRecord


@dataclass(frozen=True)
class KeptCall:
    """A reply of an episode that has not ended."""

    group_id: int
    sample: int
    choice: RecordedChoice


@dataclass
class StoredGroup:
    """A group that no checkpoint contains."""

    id: int
    state: str
    rewards: dict[int, float] = field(default_factory=dict)
    """Of its finished episodes, by sample."""
    failures: dict[int, int] = field(default_factory=dict)
    """Failed attempts, by sample."""
    credited: bool = False
    """Whether single calls or branches of it have rewards of their own."""


@dataclass(frozen=True)
class Totals:
    """Counts over the whole run."""

    finished: int
    failed: int
    tokens: int
    """Generated tokens."""
    interrupted_tokens: int
    """Generated tokens of replies that a weight update interrupted."""
    replayed_tokens: int
    """Tokens that a crash would have cost, and that were taken from the record instead."""


class Store:
    """The store of one run directory. Its calls block for about a millisecond; call them in a worker thread.

    A process start is a life: versions made in one life say nothing about the weights of another. Raises StoreError for a
    file that is no store, DiskError when the disk does not take what is written.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        except sqlite3.OperationalError as error:
            raise self._refusal(error) from error
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} cannot be used as a store: {error}") from error
        if version not in (0, SCHEMA_VERSION):
            raise StoreError(
                f"{path} has schema {version}; this agentrl reads {SCHEMA_VERSION}. Use a new run directory."
            )
        self.life: int = self._db.execute("SELECT COALESCE(MAX(life), 0) FROM lives").fetchone()[0]

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        with self._lock:
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    yield self._db
            except sqlite3.OperationalError as error:
                raise self._refusal(error) from error

    def _refusal(self, error: sqlite3.OperationalError) -> DiskError:
        return DiskError(str(self._path), error, self._path.parent)

    def begin_life(self, tasks: str = "") -> None:
        """Note that the run starts, or starts again. Raises StoreError when its `tasks` are not those it started with."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO facts VALUES ('tasks', ?)", (tasks,))
            (known,) = db.execute("SELECT value FROM facts WHERE name = 'tasks'").fetchone()
            if known != tasks:
                raise StoreError(
                    f"{self._path.parent} was started with other tasks ({known}) than it has now ({tasks}): tasks, data.shuffle, "
                    "data.eval_share, seed and rollout.group_size must stay as they were. Restore them, or start a new run."
                )
            self.life += 1
            db.execute("INSERT INTO lives VALUES (?, ?)", (self.life, time.time()))

    def open_group(self, group_id: int, epoch: int, task: int, version: int = 0) -> None:
        """Note that a task was handed out, and under which policy version its group starts."""
        with self._writing() as db:
            db.execute(
                "INSERT OR IGNORE INTO groups (id, epoch, task, state, version) VALUES (?, ?, ?, 'open', ?)",
                (group_id, epoch, task, version),
            )

    def close_group(self, group_id: int, *, rejected: str | None = None) -> None:
        """Note that a group is ready to be trained on, or why it is not."""
        with self._writing() as db:
            state = "ready" if rejected is None else "rejected"
            db.execute("UPDATE groups SET state = ?, reason = ? WHERE id = ?", (state, rejected, group_id))

    def add(self, group_id: int, sample: int, seed: int, outcome: Outcome) -> int:
        """Commit one episode, in place of its kept calls; returns its id."""
        turns = outcome.record.turns
        row = (
            self.life,
            group_id,
            sample,
            seed,
            outcome.status,
            outcome.reward,
            outcome.credited,
            json.dumps(outcome.metrics),
            outcome.error,
            _compressed(outcome.record.to_json()),
            sum(len(turn.output_ids) for turn in turns),
            sum(len(turn.output_ids) for turn in turns if len(turn.versions) > 1),
            outcome.replayed_tokens,
            outcome.started_at,
            outcome.duration_s,
        )
        with self._writing() as db:
            cursor = db.execute(
                "INSERT INTO episodes (life, group_id, sample, seed, status, reward, credited, metrics, error, record, tokens,"
                f" interrupted_tokens, replayed_tokens, started_at, duration_s) VALUES ({', '.join('?' * 15)})",
                row,
            )
            db.execute("DELETE FROM calls WHERE group_id = ? AND sample = ?", (group_id, sample))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def keep_calls(self, calls: Sequence[KeptCall]) -> None:
        """Commit replies of unfinished episodes; a later state of a reply replaces the earlier one."""
        rows = [
            (
                call.group_id,
                call.sample,
                call.choice.request,
                call.choice.completion_id,
                call.choice.choice,
                _compressed({"call_ids": call.choice.call_ids, "generation": asdict(call.choice.generation)}),
            )
            for call in calls
        ]
        with self._writing() as db:
            db.executemany(
                "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET content = excluded.content", rows
            )

    def kept_calls(self, group_id: int, sample: int) -> list[RecordedChoice]:
        """The replies of an episode that did not end, in the order in which they were first kept."""
        with self._lock:
            rows = self._db.execute(
                "SELECT request, completion_id, choice, content FROM calls WHERE group_id = ? AND sample = ? ORDER BY rowid",
                (group_id, sample),
            ).fetchall()
        choices = []
        for request, completion_id, choice, content in rows:
            kept = json.loads(zlib.decompress(content))
            generation = kept["generation"]
            generation["versions"] = [VersionSpan(**span) for span in generation["versions"]]
            generation["top_logprobs"] = [[(lp, token) for lp, token in top] for top in generation["top_logprobs"]]
            choices.append(RecordedChoice(request, completion_id, choice, kept["call_ids"], Generation(**generation)))
        return choices

    def episodes(self, group_ids: Sequence[int]) -> list[StoredEpisode]:
        """The finished episodes of some groups, by group and sample."""
        marks = ", ".join("?" * len(group_ids))
        with self._lock:
            rows = self._db.execute(
                "SELECT id, life, group_id, reward, replayed_tokens, record FROM episodes WHERE status = 'finished'"
                f" AND group_id IN ({marks}) ORDER BY group_id, sample, id",
                list(group_ids),
            ).fetchall()
        return [StoredEpisode(*(*values, _record_of(record))) for *values, record in rows]

    def episode(self, episode_id: int) -> EpisodeRow:
        """One episode. Raises StoreError when there is none."""
        with self._lock:
            row = self._db.execute(
                "SELECT id, group_id, sample, status, reward, error, record FROM episodes WHERE id = ?", (episode_id,)
            ).fetchone()
            last = self._db.execute("SELECT MAX(id) FROM episodes").fetchone()[0]
        if row is None:
            raise StoreError(f"{self._path.parent} holds no episode {episode_id}; its episodes are 1 to {last}")
        *values, record = row
        return EpisodeRow(*(*values, _record_of(record)))

    def commit_checkpoint(self, step: int, path: Path, consumed: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Record a checkpoint, in the run directory, together with the (step, group ids) of every batch trained since the one before.

        Raises StoreError if a group is in a batch already.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO checkpoints (step, life, path, made_at) VALUES (?, ?, ?, ?)",
                (step, self.life, str(path.relative_to(self._path.parent)), time.time()),
            )
            for batch_step, group_ids in consumed:
                db.execute("INSERT INTO batches VALUES (?, ?)", (batch_step, step))
                for group_id in group_ids:
                    done = db.execute(
                        "UPDATE groups SET step = ? WHERE id = ? AND step IS NULL AND state = 'ready'",
                        (batch_step, group_id),
                    )
                    if done.rowcount != 1:
                        raise StoreError(f"group {group_id} of step {batch_step} was not waiting to be trained on")

    def forget_checkpoints(self, keep: int) -> list[Path]:
        """Mark all but the newest `keep` checkpoints, and the best, as deleted; returns the directories to delete."""
        with self._writing() as db:
            score_checkpoints(db)
            rows = db.execute("SELECT step, path, score FROM checkpoints WHERE kept ORDER BY step DESC").fetchall()
            best = max((row for row in rows if row[2] is not None), key=lambda row: row[2], default=None)
            old = [row for row in rows[keep:] if row is not best]
            db.executemany("UPDATE checkpoints SET kept = 0 WHERE step = ?", [(step,) for step, _, _ in old])
        return [self._path.parent / path for _, path, _ in old]

    def kept_checkpoints(self) -> list[Path]:
        """The directories of the checkpoints that are kept, oldest first."""
        with self._lock:
            rows = self._db.execute("SELECT path FROM checkpoints WHERE kept ORDER BY step").fetchall()
        return [self._path.parent / path for (path,) in rows]

    def last_checkpoint(self) -> tuple[int, Path] | None:
        """(step, directory) of the newest checkpoint."""
        with self._lock:
            row = self._db.execute("SELECT step, path FROM checkpoints ORDER BY step DESC LIMIT 1").fetchone()
        return (row[0], self._path.parent / row[1]) if row else None

    def unused_groups(self) -> list[StoredGroup]:
        """Groups that no checkpoint contains and that were not rejected, oldest first."""
        with self._lock:
            rows: list[Any] = self._db.execute(
                "SELECT g.id, g.state, e.sample, e.status, e.reward, e.credited FROM groups g"
                " LEFT JOIN episodes e ON e.group_id = g.id WHERE g.state != 'rejected' AND g.step IS NULL"
                " ORDER BY g.id, e.sample, e.id"
            ).fetchall()
        groups: dict[int, StoredGroup] = {}
        for group_id, state, sample, status, reward, credited in rows:
            group = groups.setdefault(group_id, StoredGroup(group_id, state))
            if status == "finished":
                group.rewards[sample] = reward
                group.credited |= bool(credited)
            elif status == "failed":
                group.failures[sample] = group.failures.get(sample, 0) + 1
        return list(groups.values())

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of a query that changes nothing."""
        with self._lock:
            return query(self._db)

    def next_group_id(self) -> int:
        """One more than the largest group id ever used."""
        with self._lock:
            return int(self._db.execute("SELECT COALESCE(MAX(id) + 1, 0) FROM groups").fetchone()[0])

    def totals(self) -> Totals:
        """Counts over the whole run."""
        with self._lock:
            row = self._db.execute(
                "SELECT COALESCE(SUM(status = 'finished'), 0), COALESCE(SUM(status = 'failed'), 0),"
                " COALESCE(SUM(tokens), 0), COALESCE(SUM(interrupted_tokens), 0), COALESCE(SUM(replayed_tokens), 0)"
                " FROM episodes"
            ).fetchone()
        return Totals(*row)


def _compressed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value).encode(), 1)


def _record_of(blob: bytes) -> TokenRecord:
    """The token record in a row of `episodes`."""
    return TokenRecord.from_json(json.loads(zlib.decompress(blob)))
