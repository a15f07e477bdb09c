"""Tasks repeated until they are learned: `data.order` = "until_learned".

waiting ─► active (a few, in turn) ─► learned
   ▲          └─ max_groups ─┐           │ a group drawn by the floor fails
   └─────────────────────────┴───────────┘
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

from agentrl.config import UntilLearnedOrder
from agentrl.rollout.sampling_order import Metrics, choose, first_indices, source_of


class LearnedOrder:
    """Tasks in turn, each until it is learned. New ones come from a source drawn by its weight, in an order of its own."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], config: UntilLearnedOrder, *, seed: int) -> None:
        self._config, self._seed, self._count = config, seed, sum(sizes)
        self._first, self._weights = first_indices(sizes), list(weights)
        self._state: list[Literal["waiting", "active", "learned"]] = ["waiting"] * self._count
        self._streak = [0] * self._count
        """Groups in a row that reached the reward."""
        self._groups = [0] * self._count
        """Groups that ended since the task became active."""
        self._turn = [-1] * self._count
        """When the task was drawn last, counted in groups."""
        self._turns, self._learned, self._refills = 0, 0, 0
        self._waiting: list[deque[int]] = []
        """Of each source."""
        for source, size in enumerate(sizes):
            order = list(range(self._first[source], self._first[source] + size))
            random.Random(f"{seed}/until learned {source}").shuffle(order)  # noqa: S311
            self._waiting.append(deque(order))
        self._active: list[int] = []
        self._refill()

    def enter(self, version: int) -> None:
        """Do nothing: this order is the same under every version."""

    def draw(self, rng: random.Random) -> int:
        """Return a task by the floor, or the active one that was not drawn for longest."""
        if rng.random() < self._config.floor or not self._active:
            return int(rng.random() * self._count)
        return min(self._active, key=lambda index: self._turn[index])

    def drawn(self, index: int) -> None:
        """Put a task behind the others that are active."""
        self._turn[index] = self._turns
        self._turns += 1

    def ended(self, index: int, mean: float | None) -> None:
        """Count a group for or against its task being learned."""
        reached = mean is not None and mean >= self._config.learned_at
        self._streak[index] = self._streak[index] + 1 if reached else 0
        self._groups[index] += 1
        state = self._state[index]
        if state != "learned" and self._streak[index] >= self._config.in_a_row:
            self._leave(index)
            self._state[index] = "learned"
            self._learned += 1
        elif state == "learned" and mean is not None and not reached:
            self._learned -= 1
            self._wait(index)
        elif state == "active" and self._config.max_groups and self._groups[index] >= self._config.max_groups:
            self._leave(index)
            self._wait(index)
        self._refill()

    def to_metrics(self) -> Metrics:
        """Return how many tasks are learned, and how many are practised now."""
        return {"tasks_learned": float(self._learned), "tasks_active": float(len(self._active))}

    def _leave(self, index: int) -> None:
        if self._state[index] == "active":
            self._active.remove(index)
        else:
            self._waiting[source_of(self._first, index)].remove(index)

    def _wait(self, index: int) -> None:
        self._state[index] = "waiting"
        self._waiting[source_of(self._first, index)].append(index)

    def _refill(self) -> None:
        while len(self._active) < self._config.active and any(self._waiting):
            rng = random.Random(f"{self._seed}/refill {self._refills}")  # noqa: S311
            weights = [weight * bool(tasks) for weight, tasks in zip(self._weights, self._waiting, strict=True)]
            index = self._waiting[choose(rng, weights)].popleft()
            self._refills += 1
            self._state[index], self._groups[index], self._streak[index] = "active", 0, 0
            self._active.append(index)
