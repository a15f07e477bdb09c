"""Episodes and groups as they are read from the store, and the queries that look at many of them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.packed_record import StoredCall


@dataclass(frozen=True)
class FinishedEpisode:
    """One episode as the trainer reads it."""

    id: int
    restart: int
    group_id: int
    reward: float
    replayed_tokens: int
    """Tokens in it that an earlier start of the run generated."""
    record: TokenRecord


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode, whole, with what came of it."""

    id: int
    group_id: int
    episode_index: int
    status: str
    reward: float
    error: str | None
    record: TokenRecord


@dataclass(frozen=True)
class LoggedCall:
    """A reply of an episode that has not ended."""

    group_id: int
    episode_index: int
    call: StoredCall


@dataclass
class PendingGroup:
    """A group that no checkpoint contains, or one that started later and that a checkpoint contains already."""

    id: int
    state: str
    """`open`, `ready`, or `taken` where a checkpoint contains it."""
    rewards: dict[int, float] = field(default_factory=dict)
    """The rewards of its finished episodes, by episode index."""
    failures: dict[int, int] = field(default_factory=dict)
    """Failed attempts, by episode index."""
    has_turn_rewards: bool = False
    """Whether single calls or roles of it have rewards of their own."""


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


def pending_groups(db: sqlite3.Connection) -> list[PendingGroup]:
    """Return the groups from the oldest one on that no checkpoint contains, oldest first, without those that were rejected."""
    rows = db.execute(
        "SELECT g.id, CASE WHEN g.step IS NULL THEN g.state ELSE 'taken' END, e.episode_index, e.status, e.reward, e.has_turn_rewards"
        " FROM groups g LEFT JOIN episodes e ON e.group_id = g.id AND g.step IS NULL"
        " WHERE g.state != 'rejected' AND g.id >= (SELECT MIN(id) FROM groups WHERE state != 'rejected' AND step IS NULL)"
        " ORDER BY g.id, e.episode_index, e.id"
    ).fetchall()
    groups: dict[int, PendingGroup] = {}
    for group_id, state, episode_index, status, reward, has_turn_rewards in rows:
        group = groups.setdefault(group_id, PendingGroup(group_id, state))
        if status == "finished":
            group.rewards[episode_index] = reward
            group.has_turn_rewards |= bool(has_turn_rewards)
        elif status is not None:
            group.failures[episode_index] = group.failures.get(episode_index, 0) + 1
    return list(groups.values())


def totals(db: sqlite3.Connection) -> Totals:
    """Return the counts over the whole run."""
    row = db.execute(
        "SELECT COALESCE(SUM(status = 'finished'), 0), COALESCE(SUM(status != 'finished'), 0),"
        " COALESCE(SUM(tokens), 0), COALESCE(SUM(interrupted_tokens), 0), COALESCE(SUM(replayed_tokens), 0)"
        " FROM episodes"
    ).fetchone()
    return Totals(*row)
