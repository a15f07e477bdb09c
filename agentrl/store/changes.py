"""Changes of the groups and episodes of a run, as values that are written within a transaction.

    OpenGroup ─► InsertCall ... InsertEpisode, as many as the group has ─► CloseGroup

Many that come at the same time are committed together: `agentrl.store.store.Store.write`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import StoreError
from agentrl.record.recorded_choice import Key, RecordedChoice
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, pack, row_of

_OPEN = "INSERT OR IGNORE INTO groups (id, epoch, task, state, version, task_digest) VALUES (?, ?, ?, 'open', ?, ?)"
_FORGET = "DELETE FROM calls WHERE group_id = ? AND episode IS NULL"
"""Calls of an attempt that was cut off, and is not tried again."""
_CLOSE = "UPDATE groups SET state = ?, rejected = ? WHERE id = ?"
_END = (
    "INSERT INTO episodes (restart, group_id, episode_index, seed, reason, reward, has_turn_rewards, metrics, error, record, prompt_ids,"
    " tokens, interrupted_tokens, replayed_tokens, started_at, duration_s, details) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CALL = (
    f"INTO calls (group_id, episode_index, {', '.join(CallRow._fields)}, episode, turn) VALUES ({', '.join('?' * 14)})"
)
_LOGGED = "group_id = ? AND episode_index = ? AND episode IS NULL"
_TURN = f"UPDATE calls SET episode = ?, turn = ?, top_logprobs = NULL WHERE {_LOGGED} AND completion_id = ? AND choice_index = ?"
"""The alternatives of a token are asked for until the episode has ended, and not after that."""


@dataclass(frozen=True)
class OpenGroup:
    """A task was handed out."""

    group_id: int
    epoch: int
    task: int
    version: int = 0
    """The policy version under which its group starts."""
    digest: str = ""
    """A digest of the task."""

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        db.execute(_OPEN, (self.group_id, self.epoch, self.task, self.version, self.digest))
        return self.group_id


@dataclass(frozen=True)
class InsertCall:
    """A reply of an episode that goes on. It takes the place of one of the same name, which could not be used."""

    group_id: int
    episode_index: int
    reply: RecordedChoice | CallRow

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        row = self.reply if isinstance(self.reply, CallRow) else row_of(self.reply)
        db.execute(f"INSERT OR REPLACE {_CALL}", (self.group_id, self.episode_index, *row, None, None))
        return self.group_id


@dataclass(frozen=True)
class InsertEpisode:
    """An attempt at an episode has ended, of which its committed calls become the turns."""

    group_id: int
    episode_index: int
    seed: int
    outcome: Outcome
    committed: Container[Key] = ()
    """Its calls that the store has."""

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the number of the attempt.

        Raises:
            StoreError: A reply that its record names is not in the store.
        """
        outcome, record = self.outcome, pack(self.outcome.record, self.committed)
        figures, episode = record.figures(), (self.group_id, self.episode_index)
        values = (
            *(restart, *episode, self.seed, outcome.reason, outcome.reward),
            *(figures.has_turn_rewards, json.dumps(outcome.metrics), outcome.error, record.columns, record.prompt_ids),
            *(figures.sampled_tokens, figures.interrupted_tokens, outcome.replayed_tokens),
            *(outcome.started_at, outcome.duration_s, outcome.details),
        )
        number = db.execute(_END, values).lastrowid
        assert number is not None
        for turn, row in enumerate(record.calls):
            if not db.execute(_TURN, (number, turn, *episode, *row.key)).rowcount:
                if row.is_reference:
                    raise StoreError(f"the reply {row.key} of an episode that ended was never committed")
                db.execute(f"INSERT {_CALL}", (*episode, *row, number, turn))
        db.execute(f"DELETE FROM calls WHERE {_LOGGED}", episode)
        return number


@dataclass(frozen=True)
class CloseGroup:
    """A group is ready to be trained on, or was rejected."""

    group_id: int
    rejected: str | None = None
    """The reason."""

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        state = "ready" if self.rejected is None else "rejected"
        db.execute(_CLOSE, (state, self.rejected, self.group_id))
        db.execute(_FORGET, (self.group_id,))
        return self.group_id


@dataclass(frozen=True)
class DeleteEpisodes:
    """The episodes of a group that is not trained on are forgotten, with their calls."""

    group_id: int

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        db.execute("DELETE FROM calls WHERE episode IN (SELECT id FROM episodes WHERE group_id = ?)", (self.group_id,))
        db.execute("DELETE FROM episodes WHERE group_id = ?", (self.group_id,))
        return self.group_id


@dataclass(frozen=True)
class InsertEvaluation:
    """The policy of a step was evaluated on the held-out tasks."""

    step: int
    figures: Mapping[str, Any]

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the step."""
        db.execute("INSERT INTO evaluations VALUES (?, ?)", (self.step, json.dumps(self.figures)))
        return self.step


Change = OpenGroup | InsertCall | InsertEpisode | CloseGroup | DeleteEpisodes | InsertEvaluation
