"""Which tasks a run drew and what came of them, in the order of its ledger, which is the order that counts.

Groups end in any order. The one in which they were committed is in the ledger, so whoever reads it finds what was known when each
task was drawn.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.rollout import ledger


@dataclass(frozen=True)
class TaskDrawn:
    """A group got a task."""

    group_id: int
    epoch: int
    """How often the task was drawn before."""
    index: int


@dataclass(frozen=True)
class GroupEnded:
    """A group was closed."""

    index: int
    """Of its task."""
    mean: float | None
    """Mean reward of its finished episodes; None: there is none."""


TaskEvent = TaskDrawn | GroupEnded


def mean_reward(rewards: dict[int, float]) -> float | None:
    """Return the mean of a group's rewards, by episode index; summed in that order, so that it is the same to the bit."""
    return sum(reward for _, reward in sorted(rewards.items())) / len(rewards) if rewards else None


def task_history(db: sqlite3.Connection) -> list[TaskEvent]:
    """Return what was drawn and what has ended. Raises StoreError's causes, `sqlite3.Error`, where the store cannot be read."""
    return list(_events(db))


def _events(db: sqlite3.Connection) -> Iterator[TaskEvent]:
    set_aside = {values[0] for kind, values in ledger.entries(db, []) if kind == "set aside"}
    episodes = {
        number: (group_id, episode_index, reward)
        for number, group_id, episode_index, status, reward in db.execute(
            "SELECT id, group_id, episode_index, status, reward FROM episodes"
        )
        if status == "finished" or number in set_aside
    }
    tasks: dict[int, int] = {}
    rewards: dict[int, dict[int, float]] = {}
    for kind, values in ledger.entries(db, []):
        if kind == "open":
            group_id, epoch, index, *_ = values
            tasks[group_id], rewards[group_id] = index, {}
            yield TaskDrawn(group_id, epoch, index)
        elif kind == "episode" and values[0] in episodes:
            group_id, episode_index, reward = episodes[values[0]]
            rewards[group_id][episode_index] = reward
        elif kind == "set aside":
            group_id, episode_index, _ = episodes[values[0]]
            rewards[group_id].pop(episode_index, None)
        elif kind == "close":
            yield GroupEnded(tasks[values[0]], mean_reward(rewards[values[0]]))
