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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np

from agentrl.episode import Task
from agentrl.tasks.tasks import GroupTask, fingerprint, shuffled

Metrics = dict[str, float]
POOL_WEIGHTS = np.array([1.0, 4.0, 1.0, 4.0])
"""Weight of a task that is too hard, sometimes solved, solved, and not tried yet."""
FLOOR = 0.1
"""Share of the groups whose task is drawn from all tasks alike: with N tasks, each has at least FLOOR / N."""


class MixedOrder:
    """Sources mixed by their weights; each goes through its tasks in epochs of its own."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool) -> None:
        self._sizes, self._weights = sizes, weights
        self._first = first_indices(sizes)
        self._seed, self._shuffle = seed, shuffle
        self._counts = [0] * len(sizes)
        """Groups that each source gave a task."""

    def draw(self, rng: random.Random) -> int:
        """Return the next task of a source that is drawn by its weight. Nothing changes by it."""
        (source,) = rng.choices(range(len(self._sizes)), self._weights)
        size = self._sizes[source]
        epoch, position = divmod(self._counts[source], size)
        if self._shuffle:
            position = shuffled(size, f"{self._seed}/source {source}", epoch)[position]
        return self._first[source] + position

    def drawn(self, index: int) -> None:
        """Go on to the next task of its source."""
        self._counts[source_of(self._first, index)] += 1

    def ended(self, index: int, mean: float | None) -> None:
        """Change nothing: rewards do not count here."""

    def to_metrics(self) -> Metrics:
        """Return no metrics."""
        return {}


class PooledOrder:
    """Tasks in pools by the mean reward of their last group.

        mean of a task's last group    … < bounds[0] ≤ … < bounds[1] ≤ …    none yet
        pool                              0               1          2         3

    A group draws a source by its weight, and in it a task by the weight of its pool. With the share FLOOR it draws from all tasks alike.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._source_weights = np.array(weights)  # [source]
        self._source = np.repeat(np.arange(len(sizes)), sizes)  # [task]
        self._pool = np.full(len(self._source), len(POOL_WEIGHTS) - 1)  # [task]

    def draw(self, rng: random.Random) -> int:
        """Return a task by the weights of its source and pool. Nothing changes by it."""
        weights = POOL_WEIGHTS[self._pool]  # [task]
        weights *= (self._source_weights / np.bincount(self._source, weights))[self._source]
        ends = np.cumsum((1 - FLOOR) * weights / weights.sum() + FLOOR / len(weights))
        return int(np.searchsorted(ends[:-1], rng.random() * ends[-1], side="right"))

    def drawn(self, index: int) -> None:
        """Change nothing: a task's rewards alone count."""

    def ended(self, index: int, mean: float | None) -> None:
        """Put a task into the pool of its group's mean reward; None: no episode of the group finished."""
        if mean is not None:
            self._pool[index] = bisect_right(self._bounds, mean)

    def to_metrics(self) -> Metrics:
        """Return the share of tasks in each pool."""
        shares = np.bincount(self._pool, minlength=len(POOL_WEIGHTS)) / len(self._pool)
        return dict(zip(("tasks_pool_0", "tasks_pool_1", "tasks_pool_2", "tasks_unseen"), shares.tolist(), strict=True))


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


@dataclass
class DrawnTasks:
    """Tasks of one source or several, in an order that is drawn."""

    tasks: Sequence[Task]
    """Those of all sources, one behind another."""
    sizes: Sequence[int]
    """Tasks of each source."""
    order: MixedOrder | PooledOrder
    """Its state is a fold over `drawn` and `ended`. Tasks go by their index over all sources."""
    described: str
    """The order and its settings: another text is another order."""
    seed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Tasks are drawn in a thread, and groups end in the event loop."""
    _drawn: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, index) of each group."""
    _visits: dict[int, int] = field(default_factory=dict)
    _recent: list[int] = field(default_factory=list)
    """Tasks that were drawn since the metrics were taken last."""

    @property
    def identity(self) -> str:
        """Their number and content, and how they are drawn. The claims of `agentrl audit` read its first two words."""
        return f"drawn from {len(self.tasks)} tasks {fingerprint(self.tasks)}, {self.described}, seed {self.seed}"

    def task_of_group(self, group_id: int) -> GroupTask | None:
        """Return the task that a group was given, or draw that of the next group."""
        with self._lock:
            while len(self._drawn) <= group_id:
                self._note(self.order.draw(random.Random(f"{self.seed}/task/{len(self._drawn)}")))  # noqa: S311
            epoch, index = self._drawn[group_id]
        return GroupTask(epoch, index, self.tasks[index])

    def group_ended(self, group_id: int, mean: float | None) -> None:
        """Note the mean reward of a group; None: none of its episodes finished."""
        with self._lock:
            self.order.ended(self._drawn[group_id][1], mean)

    def restore(self, groups: Iterable[GivenTask]) -> None:
        """Go on after the groups that a run has, which keep the tasks that they were given."""
        for group in groups:
            self._note(group.index)
            if group.ended:
                self.order.ended(group.index, group.mean)
        self._recent = []

    def take_metrics(self) -> Metrics:
        """Return the metrics of the state, and of the tasks that were drawn since they were taken last."""
        with self._lock:
            state, recent, self._recent = self.order.to_metrics(), self._recent, []
        first = first_indices(self.sizes)
        metrics = state | {"drawn_groups": float(len(recent))}
        if len(self.sizes) > 1 and recent:
            sources = [source_of(first, index) for index in recent]
            metrics |= {f"drawn_source_{i}": sources.count(i) / len(sources) for i in range(len(self.sizes))}
        return metrics

    def _note(self, index: int) -> None:
        self._drawn.append((self._visits.get(index, 0), index))
        self._visits[index] = self._visits.get(index, 0) + 1
        self._recent.append(index)
        self.order.drawn(index)


def first_indices(sizes: Sequence[int]) -> list[int]:
    """Return the index of the first task of each source, where the tasks of all stand one behind another."""
    return [0, *accumulate(sizes)][:-1]


def source_of(first: Sequence[int], index: int) -> int:
    """Return the source of a task, by the first index of each."""
    return bisect_right(first, index) - 1
