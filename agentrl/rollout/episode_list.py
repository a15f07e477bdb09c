"""The episodes of a store as a list to choose from: what came of each, without its tokens."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import UsageError
from agentrl.record.end_reason import EndReason

FAILED = "failed"
"""What a filter names all reasons but FINISHED with."""


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
