"""Episodes and groups as they are read from the store, and the queries that look at many of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord


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


@dataclass
class GroupProgress:
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


def resumed_groups(db: sqlite3.Connection) -> list[GroupProgress]:
    """Return the groups from the oldest one on that no checkpoint contains, oldest first, without those that were rejected."""
    rows = db.execute(
        "SELECT g.id, CASE WHEN g.step IS NULL THEN g.state ELSE 'taken' END, e.episode_index, e.reason, e.reward, e.has_turn_rewards"
        " FROM groups g LEFT JOIN episodes e ON e.group_id = g.id AND g.step IS NULL"
        " WHERE g.state != 'rejected' AND g.id >= (SELECT MIN(id) FROM groups WHERE state != 'rejected' AND step IS NULL)"
        " ORDER BY g.id, e.episode_index, e.id"
    ).fetchall()
    groups: dict[int, GroupProgress] = {}
    for group_id, state, episode_index, reason, reward, has_turn_rewards in rows:
        group = groups.setdefault(group_id, GroupProgress(group_id, state))
        if reason == "finished":
            group.rewards[episode_index] = reward
            group.has_turn_rewards |= bool(has_turn_rewards)
        elif reason is not None:
            group.failures[episode_index] = group.failures.get(episode_index, 0) + 1
    return list(groups.values())


def count_totals(db: sqlite3.Connection) -> Totals:
    """Return the counts over the whole run."""
    row = db.execute(
        "SELECT COALESCE(SUM(reason = 'finished'), 0), COALESCE(SUM(reason != 'finished'), 0),"
        " COALESCE(SUM(tokens), 0), COALESCE(SUM(interrupted_tokens), 0), COALESCE(SUM(replayed_tokens), 0)"
        " FROM episodes"
    ).fetchone()
    return Totals(*row)


@dataclass(frozen=True, kw_only=True, repr=False)
class ListedEpisode:
    """One episode, and what came of it."""

    id: int
    """Its id in the store: `agentrl replay RUN ID` runs an episode of a run again."""
    task: int
    """Index of its task."""
    epoch: int
    group: int
    """Id of its group."""
    episode_index: int
    """Its number in its group."""
    reason: EndReason
    """How it ended."""
    reward: float
    """The reward that the workflow returned; 0 for one that failed."""
    metrics: Mapping[str, float]
    """The numbers that the workflow logged."""
    error: str | None
    """The traceback of a failed one."""
    tokens: int
    """The number of tokens that the policy generated in it."""
    step: int | None
    """The training step whose batch its group is in, once a checkpoint contains that."""
    version: int
    """The policy version under which its group started."""
    started_at: float
    """Seconds since 1970."""
    duration_s: float


_COLUMNS = {name: f"e.{name}" for name in ListedEpisode.__dataclass_fields__}
_COLUMNS |= {"task": "g.task", "epoch": "g.epoch", "group": "e.group_id", "step": "g.step", "version": "g.version"}

Order = Literal["oldest", "newest", "best", "worst"]
_ORDERS: dict[Order, tuple[str, str]] = {
    "oldest": ("e.id", "e.id > ?"),
    "newest": ("e.id DESC", "e.id < ?"),
    "best": ("e.reward DESC, e.id DESC", "(e.reward, e.id) < (SELECT reward, id FROM episodes WHERE id = ?)"),
    "worst": ("e.reward, e.id", "(e.reward, e.id) > (SELECT reward, id FROM episodes WHERE id = ?)"),
}
"""How each order sorts, and what comes after an episode in it."""


def list_episodes(
    db: sqlite3.Connection,
    where: Mapping[str, Any],
    *,
    limit: int | None = None,
    offset: int = 0,
    order: Order = "oldest",
    after: int | None = None,
) -> list[ListedEpisode]:
    """Return the episodes that fit, failed attempts included.

    An episode's row is large, as its record is in it. So all but an order by id alone is answered from an index that has what
    conditions are about, and only the rows of the answer are read: 0.3 s for a million episodes.

    Args:
        db: The store.
        where: Conditions of a column of an episode `e` or of its group `g`, such as `g.task = ?`, each with its value; None: it is none.
        limit: How many, at most.
        offset: How many are passed over first.
        order: By which they are sorted.
        after: The id of the episode that comes before the first one, in that order.
    """
    sorting, follows = _ORDERS[order]
    used = {condition: value for condition, value in {**where, follows: after}.items() if value is not None}
    of_groups = [condition for condition in used if condition.startswith("g.")]
    conditions = [condition for condition in used if condition not in of_groups]
    values = [used[condition] for condition in (*conditions, *of_groups)]
    if of_groups:
        conditions.append(f"e.group_id IN (SELECT g.id FROM groups g WHERE {' AND '.join(of_groups)})")
    by_id = all(condition.startswith("e.id ") for condition in conditions) and order in ("oldest", "newest")
    rows = db.execute(
        f"SELECT {', '.join(_COLUMNS.values())} FROM episodes e JOIN groups g ON g.id = e.group_id WHERE e.id IN ("
        f"SELECT e.id FROM episodes e {'' if by_id else 'INDEXED BY episodes_by_group'} WHERE {' AND '.join(conditions) or 'TRUE'}"
        f" ORDER BY {sorting} LIMIT ? OFFSET ?) ORDER BY {sorting}",
        [*values, -1 if limit is None else limit, offset],
    )
    listed = (dict(zip(_COLUMNS, row, strict=True)) for row in rows.fetchall())
    return [
        ListedEpisode(**{**row, "reason": EndReason(row["reason"]), "metrics": json.loads(row["metrics"])})
        for row in listed
    ]
