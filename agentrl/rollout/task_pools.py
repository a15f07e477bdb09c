"""Tasks drawn by pools: `data.order` = "difficulty", which is one stage for ever, and "schedule", which is several.

    mean of a task's last group    none yet │ … < bounds[0] ≤ … < bounds[1] ≤ …
    pool                            unseen  │     0               1         2

With the share `floor` a task is drawn from all alike; else a source by its weight, and in it a task by the weight of its pool, of those
that the stage takes. A pool's share is then (tasks in it · its weight) / Σ over pools.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.rollout.sampling_order import Metrics, choose, first_indices, source_of


@dataclass(frozen=True)
class PoolStage:
    """What is drawn from a version on."""

    from_version: int
    sources: Sequence[float]
    """Weight of each source."""
    weights: Sequence[float]
    """Weight of a task in each pool, from pool 0 on; the last is that of the unseen."""
    tasks: frozenset[int] | None = None
    """The tasks that it takes; None: all."""


class PooledOrder:
    """Tasks in pools by the mean reward of their last group. `sizes`: tasks of each source; `stages` begin with version 0."""

    def __init__(
        self, sizes: Sequence[int], stages: Sequence[PoolStage], *, bounds: Sequence[float], floor: float
    ) -> None:
        self._first, self._count = first_indices(sizes), sum(sizes)
        self._stages, self._bounds, self._floor = list(stages), list(bounds), floor
        self._unseen = len(self._bounds) + 1
        self.last: list[float | None] = [None] * self._count
        """Mean reward of the last group of each task."""
        self._pool = [self._unseen] * self._count
        self._position = [0] * self._count
        """Of a task in the list of its pool."""
        self._members: list[list[list[int]]] = []
        """The tasks of each pool of each source that the stage takes."""
        self._stage = -1
        self._begin(0)

    def enter(self, version: int) -> None:
        """Enter the stage of a version."""
        if (stage := self._stage_of(version)) != self._stage:
            self._begin(stage)

    def draw(self, rng: random.Random) -> int:
        """Return a task by the floor, or by its source and pool in the stage."""
        if rng.random() < self._floor:
            return int(rng.random() * self._count)
        current = self._stages[self._stage]
        by_pool = [
            [len(tasks) * weight for tasks, weight in zip(pools, current.weights, strict=True)]
            for pools in self._members
        ]
        by_source = [weight * (sum(weights) > 0) for weight, weights in zip(current.sources, by_pool, strict=True)]
        if not any(by_source):
            return int(rng.random() * self._count)  # nothing is in a pool that has a weight
        source = choose(rng, by_source)
        tasks = self._members[source][choose(rng, by_pool[source])]
        return tasks[int(rng.random() * len(tasks))]

    def drawn(self, index: int) -> None:
        """Do nothing: a task is in the pool of its last group until the next one ends."""

    def ended(self, index: int, mean: float | None) -> None:
        """Put a task into the pool of its group's mean reward."""
        if mean is None:
            return
        self.last[index] = mean
        pool = bisect_right(self._bounds, mean)
        if pool != self._pool[index]:
            self._take_out(index)
            self._pool[index] = pool
            self._put_in(index)

    def to_metrics(self) -> Metrics:
        """Return the share of tasks in each pool."""
        names = [*(f"tasks_pool_{pool}" for pool in range(self._unseen)), "tasks_unseen"]
        return {name: self._pool.count(pool) / self._count for pool, name in enumerate(names)}

    def _stage_of(self, version: int) -> int:
        return max(i for i, stage in enumerate(self._stages) if stage.from_version <= version)

    def _begin(self, stage: int) -> None:
        self._stage = stage
        self._members = [[[] for _ in range(self._unseen + 1)] for _ in self._first]
        for index in range(self._count):
            self._put_in(index)

    def _takes(self, index: int) -> bool:
        taken = self._stages[self._stage].tasks
        return taken is None or index in taken

    def _put_in(self, index: int) -> None:
        if self._takes(index):
            tasks = self._members[source_of(self._first, index)][self._pool[index]]
            self._position[index] = len(tasks)
            tasks.append(index)

    def _take_out(self, index: int) -> None:
        if self._takes(index):
            tasks = self._members[source_of(self._first, index)][self._pool[index]]
            last = tasks.pop()
            if last != index:
                tasks[self._position[index]] = last
                self._position[last] = self._position[index]
