"""The tasks that the groups of a run were given, and what came of them, as its store has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class GivenTask:
    """The task of one group."""

    index: int
    ended: bool
    """Whether the group was closed."""
    mean: float | None
    """Mean reward of its finished episodes; None: there is none."""


def mean_reward(rewards: Sequence[float]) -> float | None:
    """Return the mean of a group's rewards; summed in the order of its episodes, so that it is the same to the bit."""
    return sum(rewards) / len(rewards) if rewards else None


def task_history(db: sqlite3.Connection) -> list[GivenTask]:
    """Return the tasks of the groups 0, 1, ... Raises `sqlite3.Error` where the store cannot be read."""
    rows = db.execute(
        "SELECT g.id, g.task, g.state != 'open', e.reward FROM groups g"
        " LEFT JOIN episodes e ON e.group_id = g.id AND e.status = 'finished' ORDER BY g.id, e.episode_index"
    )
    return [
        GivenTask(index, bool(ended), mean_reward([reward for *_, reward in episodes if reward is not None]))
        for (_, index, ended), episodes in groupby(rows, key=lambda row: row[:3])
    ]
