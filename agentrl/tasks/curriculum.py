"""The order in which tasks are drawn, from several sources, or by what came of the groups before.

                draw                           OpenGroup
    order ──────────────────► task of a group ────────────► store: groups ──► restore: the groups keep their tasks, the order goes on
      ▲                                                          ▲
      └──── ended: mean reward of the group ◄── CloseGroup ──────┘

A task is drawn when its group starts, by the seed, the group's number and what had ended until then.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from agentrl.config.data import TaskOrder
from agentrl.episode import Task
from agentrl.tasks.tasks import GroupTask, fingerprint, shuffled

POOLS = {"tasks_pool_0": 1.0, "tasks_pool_1": 4.0, "tasks_pool_2": 1.0, "tasks_unseen": 4.0}
"""Pools of tasks by the mean reward of their last group, and the weight of a task in each: too hard, sometimes solved, solved, not tried yet.

    mean       … < 0.25 ≤ … < 0.75 ≤ …    none yet
    pool          0         1         2      unseen

A group draws a source by its weight, and in it a task by the weight of its pool.
"""
FLOOR = 0.1
"""Share of the groups whose task is drawn from all tasks alike: with N tasks, each has at least FLOOR / N."""


@dataclass(frozen=True)
class GivenTask:
    """The task of one group, as the store has it."""

    index: int
    ended: bool
    """Whether the group was closed."""
    mean: float | None
    """Mean reward of its finished episodes; None: there is none."""


def mean_reward(rewards: Sequence[float]) -> float | None:
    """Return the mean of a group's rewards; summed in the order of its episodes, so that it is the same to the bit."""
    return sum(rewards) / len(rewards) if rewards else None


def task_history(db: sqlite3.Connection) -> list[GivenTask]:
    """Return the tasks of the groups 0, 1, ... of a run. Raises `sqlite3.Error` where the store cannot be read."""
    rows = db.execute(
        "SELECT g.id, g.task, g.state != 'open', e.reward FROM groups g"
        " LEFT JOIN episodes e ON e.group_id = g.id AND e.reason = 'finished' ORDER BY g.id, e.episode_index"
    )
    return [
        GivenTask(index, bool(ended), mean_reward([reward for *_, reward in episodes if reward is not None]))
        for (_, index, ended), episodes in groupby(rows, key=lambda row: row[:3])
    ]


class DrawnTasks:
    """Tasks of one source or several, in an order that is drawn: its state is a fold over the groups that got a task and that ended.

    Args:
        sources: The tasks of each source.
        weights: How often a group takes its task from each.
        order: By difficulty, or each source in epochs of its own, shuffled or in order.
        seed: That of the run.
    """

    def __init__(
        self, sources: Sequence[Sequence[Task]], weights: Sequence[float], order: TaskOrder, seed: int = 0
    ) -> None:
        self.tasks = [task for tasks in sources for task in tasks]
        self._weights, self._order, self._seed = weights, order, seed
        self._sizes = [len(tasks) for tasks in sources]
        self._source = np.repeat(np.arange(len(sources)), self._sizes)  # [task]
        self._pool = np.full(len(self.tasks), len(POOLS) - 1)  # [task]
        self._drawn: list[tuple[int, int]] = []
        """(epoch, index) of each group."""
        self._visits: Counter[int] = Counter()
        """Groups that got each task."""
        self._taken: Counter[int] = Counter()
        """Groups that got a task of each source."""
        self._recent: list[int] = []
        """Tasks that were drawn since the metrics were taken last."""
        # Tasks are drawn in a thread, and groups end in the event loop.
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Their number and content, and how they are drawn. The claims of `agentrl audit` read its first two words."""
        order = f"order {self._order}, sources {self._sizes} by {self._weights}"
        return f"drawn from {len(self.tasks)} tasks {fingerprint(self.tasks)}, {order}, seed {self._seed}"

    def task_of_group(self, group_id: int) -> GroupTask | None:
        """Return the task that a group was given, or draw that of the next group."""
        with self._lock:
            while len(self._drawn) <= group_id:
                self._note(self._draw(random.Random(f"{self._seed}/task/{len(self._drawn)}")))  # noqa: S311
            epoch, index = self._drawn[group_id]
        return GroupTask(epoch, index, self.tasks[index])

    def group_ended(self, group_id: int, mean: float | None) -> None:
        """Note the mean reward of a group; None: none of its episodes finished."""
        with self._lock:
            self._note_end(self._drawn[group_id][1], mean)

    def restore(self, groups: Iterable[GivenTask]) -> None:
        """Go on after the groups that a run has, which keep the tasks that they were given."""
        for group in groups:
            self._note(group.index)
            if group.ended:
                self._note_end(group.index, group.mean)
        self._recent = []

    def take_metrics(self) -> dict[str, float]:
        """Return the share of tasks in each pool, and how many groups drew a task since this was called last, by source."""
        with self._lock:
            pools = np.bincount(self._pool, minlength=len(POOLS)) / len(self._pool)
            recent, self._recent = self._recent, []
        metrics = {"drawn_groups": float(len(recent))}
        if self._order == "difficulty":
            metrics |= dict(zip(POOLS, pools.tolist(), strict=True))
        if len(self._sizes) > 1 and recent:
            shares = np.bincount(self._source[recent], minlength=len(self._sizes)) / len(recent)
            metrics |= {f"drawn_source_{source}": share for source, share in enumerate(shares.tolist())}
        return metrics

    def _draw(self, rng: random.Random) -> int:
        if self._order == "difficulty":
            worth = np.array(list(POOLS.values()))[self._pool]  # [task]
            worth *= (self._weights / np.bincount(self._source, worth))[self._source]
            ends = np.cumsum((1 - FLOOR) * worth / worth.sum() + FLOOR / len(worth))
            return int(np.searchsorted(ends[:-1], rng.random() * ends[-1], side="right"))
        (source,) = rng.choices(range(len(self._sizes)), self._weights)
        epoch, position = divmod(self._taken[source], self._sizes[source])
        if self._order == "shuffled":
            position = shuffled(self._sizes[source], f"{self._seed}/source {source}", epoch)[position]
        return sum(self._sizes[:source]) + position

    def _note(self, index: int) -> None:
        self._drawn.append((self._visits[index], index))
        self._visits[index] += 1
        self._taken[int(self._source[index])] += 1
        self._recent.append(index)

    def _note_end(self, index: int, mean: float | None) -> None:
        if mean is not None and self._order == "difficulty":
            self._pool[index] = bisect_right((0.25, 0.75), mean)
