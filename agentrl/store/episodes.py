"""Episodes and groups as they are read from the store, and the queries that look at many of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import UsageError
from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord

FAILED = "failed"
"""The name under which a filter has all reasons but FINISHED."""


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


@dataclass(frozen=True, kw_only=True)
class EpisodeFilter:
    """Which episodes are listed, oldest first unless `newest_first`. What is None filters nothing.

    Raises:
        UsageError: No episode has such a status.
    """

    id: int | None = None
    task: int | None = None
    group: int | None = None
    status: str | None = None
    """An `EndReason`, or "failed": any of a failure."""
    min_reward: float | None = None
    max_reward: float | None = None
    limit: int | None = None
    offset: int = 0
    newest_first: bool = False

    def __post_init__(self) -> None:
        if self.status not in (None, FAILED, *EndReason):
            raise UsageError(
                f"status = {self.status!r}: no episode has it; use {FAILED} or one of {', '.join(EndReason)}"
            )


@dataclass(frozen=True)
class ListedEpisode:
    """One episode, and what came of it."""

    id: int
    task: int
    """Index of its task."""
    epoch: int
    group_id: int
    episode_index: int
    """Its number in its group."""
    status: EndReason
    reward: float
    metrics: Mapping[str, float]
    error: str | None
    """The traceback of a failed one."""
    tokens: int
    """Generated tokens."""
    step: int | None
    """The training step whose batch its group is in, once a checkpoint contains that."""
    started_at: float
    """Seconds since 1970."""
    duration_s: float


def list_episodes(db: sqlite3.Connection, chosen: EpisodeFilter) -> list[ListedEpisode]:
    """Return the episodes that the filter lets through."""
    any_failure = chosen.status == FAILED
    conditions: dict[str, Any] = {
        "e.id = ?": chosen.id,
        "g.task = ?": chosen.task,
        "e.group_id = ?": chosen.group,
        "e.status = ?": None if any_failure else chosen.status,
        "e.status != ?": EndReason.FINISHED if any_failure else None,
        "e.reward >= ?": chosen.min_reward,
        "e.reward <= ?": chosen.max_reward,
    }
    used = {condition: value for condition, value in conditions.items() if value is not None}
    rows = db.execute(
        "SELECT e.id, g.task, g.epoch, e.group_id, e.episode_index, e.status, e.reward, e.metrics, e.error, e.tokens, g.step,"
        " e.started_at, e.duration_s FROM episodes e JOIN groups g ON g.id = e.group_id"
        f" WHERE {' AND '.join(used) or 'TRUE'} ORDER BY e.id {'DESC' if chosen.newest_first else 'ASC'} LIMIT ? OFFSET ?",
        [*used.values(), -1 if chosen.limit is None else chosen.limit, chosen.offset],
    ).fetchall()
    listed = []
    for row in rows:
        values = list(row)
        values[5], values[7] = EndReason(row[5]), json.loads(row[7])
        listed.append(ListedEpisode(*values))
    return listed
