"""Tasks drawn by pools: `data.order` = "difficulty".

    mean of a task's last group    none yet │ … < bounds[0] ≤ … < bounds[1] ≤ …
    pool                            unseen  │     0               1         2

With the share `floor` a task is drawn from all alike; else a source by its weight, and in it a task by the weight of its pool.
A pool's share is then (tasks in it · its weight) / Σ over pools.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

from agentrl.config import DifficultyOrder
from agentrl.rollout.sampling_order import Metrics, choose, first_indices, source_of


class PooledOrder:
    """Tasks in pools by the mean reward of their last group. `sizes` and `weights`: of each source."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], config: DifficultyOrder) -> None:
        self._first, self._count = first_indices(sizes), sum(sizes)
        self._sources, self._weights = list(weights), [*config.weights, config.unseen]
        self._bounds, self._floor = config.bounds, config.floor
        self._unseen = len(self._bounds) + 1
        self._pool = [self._unseen] * self._count
        self._position = [0] * self._count
        """Of a task in the list of its pool."""
        self._members: list[list[list[int]]] = [[[] for _ in self._weights] for _ in sizes]
        """The tasks of each pool of each source."""
        for index in range(self._count):
            self._put_in(index)

    def draw(self, rng: random.Random) -> int:
        """Return a task by the floor, or by its source and pool."""
        if rng.random() < self._floor:
            return int(rng.random() * self._count)
        by_pool = [
            [len(tasks) * weight for tasks, weight in zip(pools, self._weights, strict=True)] for pools in self._members
        ]
        by_source = [weight * (sum(weights) > 0) for weight, weights in zip(self._sources, by_pool, strict=True)]
        if not any(by_source):
            return int(rng.random() * self._count)  # nothing is in a pool that has a weight
        source = choose(rng, by_source)
        tasks = self._members[source][choose(rng, by_pool[source])]
        return tasks[int(rng.random() * len(tasks))]

    def drawn(self, index: int) -> None:
        """Do nothing: a task is in the pool of its last group until the next one ends."""

    def ended(self, index: int, mean: float | None) -> None:
        """Put a task into the pool of its group's mean reward."""
        pool = self._pool[index] if mean is None else bisect_right(self._bounds, mean)
        if pool != self._pool[index]:
            self._take_out(index)
            self._pool[index] = pool
            self._put_in(index)

    def to_metrics(self) -> Metrics:
        """Return the share of tasks in each pool."""
        names = [*(f"tasks_pool_{pool}" for pool in range(self._unseen)), "tasks_unseen"]
        return {name: self._pool.count(pool) / self._count for pool, name in enumerate(names)}

    def _put_in(self, index: int) -> None:
        tasks = self._members[source_of(self._first, index)][self._pool[index]]
        self._position[index] = len(tasks)
        tasks.append(index)

    def _take_out(self, index: int) -> None:
        tasks = self._members[source_of(self._first, index)][self._pool[index]]
        last = tasks.pop()
        if last != index:
            tasks[self._position[index]] = last
            self._position[last] = self._position[index]
