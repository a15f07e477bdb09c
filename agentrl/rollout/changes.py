"""What happens to the groups and episodes of a run, each as a value that is written within a transaction.

    OpenGroup ─► EndedEpisode, as many as the group has ─► CloseGroup

Many that come at the same time are committed together: `agentrl.rollout.store.Store.write`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentrl.rollout import calls
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.packed_record import Key, StoredCall, pack

_OPEN = "INSERT OR IGNORE INTO groups (id, epoch, task, state, version, task_digest) VALUES (?, ?, ?, 'open', ?, ?)"
_CLOSE = "UPDATE groups SET state = ?, reason = ? WHERE id = ?"
_END = (
    "INSERT INTO episodes (restart, group_id, episode_index, seed, status, reward, has_turn_rewards, metrics, error, record, prompt_ids,"
    " tokens, interrupted_tokens, replayed_tokens, started_at, duration_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class OpenGroup:
    """A task was handed out."""

    group_id: int
    epoch: int
    task: int
    version: int = 0
    """Under which policy version its group starts."""
    digest: str = ""
    """What tells the task from others."""

    def prepared(self) -> OpenGroup:
        """Return it: there is nothing to do before."""
        return self

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        db.execute(_OPEN, (self.group_id, self.epoch, self.task, self.version, self.digest))
        return self.group_id


@dataclass(frozen=True)
class EndedEpisode:
    """An attempt at an episode has ended, of which its logged calls become the turns."""

    group_id: int
    episode_index: int
    seed: int
    outcome: Outcome
    kept: Mapping[Key, StoredCall] = field(default_factory=dict)
    """Its calls that were logged."""

    def prepared(self) -> EndedEpisode:
        """Return the same with what takes time done."""
        record = pack(self.outcome.record, self.kept)
        return replace(self, outcome=replace(self.outcome, record=record))

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the number of the attempt."""
        outcome, record = self.outcome, pack(self.outcome.record, self.kept)
        figures = record.figures()
        values = (
            *(restart, self.group_id, self.episode_index, self.seed, outcome.status, outcome.reward),
            *(figures.has_turn_rewards, json.dumps(outcome.metrics), outcome.error, record.columns, record.prompt_ids),
            *(figures.sampled_tokens, figures.interrupted_tokens, outcome.replayed_tokens),
            *(outcome.started_at, outcome.duration_s),
        )
        number = db.execute(_END, values).lastrowid
        assert number is not None
        calls.end(db, self.group_id, self.episode_index, number, record.calls)
        return number


@dataclass(frozen=True)
class CloseGroup:
    """A group is ready to be trained on, or was rejected."""

    group_id: int
    rejected: str | None = None
    """Why."""

    def prepared(self) -> CloseGroup:
        """Return it: there is nothing to do before."""
        return self

    def write(self, db: sqlite3.Connection, restart: int) -> int:
        """Write it. Returns the group's id."""
        state = "ready" if self.rejected is None else "rejected"
        db.execute(_CLOSE, (state, self.rejected, self.group_id))
        return self.group_id


Change = OpenGroup | EndedEpisode | CloseGroup
