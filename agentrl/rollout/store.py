"""The run's memory: every episode, and which of them each checkpoint was trained on. SQLite, in the run directory.

An episode is committed before it counts as finished. A batch is marked consumed in the transaction that records the
checkpoint which contains it: after a crash, episodes that only lost steps had used are unused again, and no episode is
trained on twice.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl.errors import StoreError
from agentrl.rollout.run_episode import Outcome
from agentrl.trajectory import TokenRecord

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    task INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'rejected'))
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    life INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES groups (id),
    sample INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('finished', 'failed')),
    reward REAL NOT NULL,
    metrics TEXT NOT NULL,
    error TEXT,
    record BLOB NOT NULL,
    tokens INTEGER NOT NULL,
    interrupted_tokens INTEGER NOT NULL,
    started_at REAL NOT NULL,
    duration_s REAL NOT NULL,
    consumed_step INTEGER
);
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, path TEXT NOT NULL, made_at REAL NOT NULL);
CREATE TABLE lives (life INTEGER PRIMARY KEY, started_at REAL NOT NULL);
"""


@dataclass(frozen=True)
class StoredEpisode:
    """One episode as the trainer reads it."""

    id: int
    life: int
    group_id: int
    reward: float
    record: TokenRecord


@dataclass(frozen=True)
class Totals:
    """Counts over the whole run."""

    finished: int
    failed: int
    tokens: int
    """Generated tokens."""
    interrupted_tokens: int
    """Generated tokens of replies that a weight update interrupted."""


class Store:
    """The store of one run directory. Its calls block for about a millisecond; call them in a worker thread.

    A process start is a life: versions made in one life say nothing about the weights of another.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
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

    def begin_life(self) -> None:
        """Note that the run starts, or starts again."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self.life += 1
            self._db.execute("INSERT INTO lives VALUES (?, ?)", (self.life, time.time()))

    def open_group(self, group_id: int, task: int) -> None:
        """Note that a group starts, or goes on in a new life."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO groups VALUES (?, ?, 'open')", (group_id, task))

    def close_group(self, group_id: int, state: str) -> None:
        """Note that a group is `ready` to be trained on, or `rejected`."""
        with self._lock:
            self._db.execute("UPDATE groups SET state = ? WHERE id = ?", (state, group_id))

    def add(self, group_id: int, sample: int, seed: int, outcome: Outcome) -> int:
        """Commit one episode; returns its id."""
        turns = outcome.record.turns
        row = (
            self.life,
            group_id,
            sample,
            seed,
            outcome.status,
            outcome.reward,
            json.dumps(outcome.metrics),
            outcome.error,
            zlib.compress(json.dumps(outcome.record.to_json()).encode(), 1),
            sum(len(turn.output_ids) for turn in turns),
            sum(len(turn.output_ids) for turn in turns if len(turn.versions) > 1),
            outcome.started_at,
            outcome.duration_s,
        )
        with self._lock:
            cursor = self._db.execute(
                "INSERT INTO episodes (life, group_id, sample, seed, status, reward, metrics, error, record, tokens,"
                f" interrupted_tokens, started_at, duration_s) VALUES ({', '.join('?' * 13)})",
                row,
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def episodes(self, group_ids: Sequence[int]) -> list[StoredEpisode]:
        """The finished episodes of some groups, by group and sample."""
        marks = ", ".join("?" * len(group_ids))
        with self._lock:
            rows = self._db.execute(
                "SELECT id, life, group_id, reward, record FROM episodes WHERE status = 'finished'"
                f" AND group_id IN ({marks}) ORDER BY group_id, sample, id",
                list(group_ids),
            ).fetchall()
        return [
            StoredEpisode(id_, life, group_id, reward, TokenRecord.from_json(json.loads(zlib.decompress(record))))
            for id_, life, group_id, reward, record in rows
        ]

    def commit_checkpoint(self, step: int, path: Path, consumed: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Record a checkpoint together with the (step, group ids) of every batch trained since the one before."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (step, str(path), time.time()))
            for batch_step, group_ids in consumed:
                self._db.executemany(
                    "UPDATE episodes SET consumed_step = ? WHERE group_id = ?", [(batch_step, g) for g in group_ids]
                )

    def forget_checkpoints(self, keep: int) -> list[Path]:
        """Drop all but the newest `keep` checkpoints from the record; returns the directories to delete."""
        with self._lock:
            rows = self._db.execute("SELECT step, path FROM checkpoints ORDER BY step DESC").fetchall()
            for step, _ in rows[keep:]:
                self._db.execute("DELETE FROM checkpoints WHERE step = ?", (step,))
        return [Path(path) for _, path in rows[keep:]]

    def last_checkpoint(self) -> tuple[int, Path] | None:
        """(step, directory) of the newest checkpoint."""
        with self._lock:
            row = self._db.execute("SELECT step, path FROM checkpoints ORDER BY step DESC LIMIT 1").fetchone()
        return (row[0], Path(row[1])) if row else None

    def unused_groups(self) -> list[tuple[int, str, list[tuple[int, float]]]]:
        """(id, state, [(sample, reward) of its finished episodes]) of groups that no checkpoint contains, oldest first."""
        with self._lock:
            rows: list[Any] = self._db.execute(
                "SELECT g.id, g.state, e.sample, e.reward FROM groups g LEFT JOIN episodes e"
                " ON e.group_id = g.id AND e.status = 'finished' WHERE g.state != 'rejected'"
                " AND NOT EXISTS (SELECT 1 FROM episodes u WHERE u.group_id = g.id AND u.consumed_step IS NOT NULL)"
                " ORDER BY g.id, e.sample"
            ).fetchall()
        groups: dict[int, tuple[int, str, list[tuple[int, float]]]] = {}
        for group_id, state, sample, reward in rows:
            _, _, episodes = groups.setdefault(group_id, (group_id, state, []))
            if sample is not None:
                episodes.append((sample, reward))
        return list(groups.values())

    def next_group_id(self) -> int:
        """One more than the largest group id ever used."""
        with self._lock:
            return int(self._db.execute("SELECT COALESCE(MAX(id) + 1, 0) FROM groups").fetchone()[0])

    def totals(self) -> Totals:
        """Counts over the whole run."""
        with self._lock:
            row = self._db.execute(
                "SELECT COALESCE(SUM(status = 'finished'), 0), COALESCE(SUM(status = 'failed'), 0),"
                " COALESCE(SUM(tokens), 0), COALESCE(SUM(interrupted_tokens), 0) FROM episodes"
            ).fetchone()
        return Totals(*row)
