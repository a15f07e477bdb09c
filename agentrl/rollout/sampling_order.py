"""How the next task is drawn: one protocol, and the order that only mixes sources.

drawn(index)        a group got this task           ┐ the state is a fold over these
ended(index, mean)  a group of this task has ended  ┘
draw(rng)           pure: follows from the state and from numbers of `rng`, and changes nothing
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

Metrics = dict[str, float | None]


class SamplingOrder(Protocol):
    """Which task comes next, by what was drawn and what came of it. Tasks go by their index over all sources."""

    def draw(self, rng: random.Random) -> int:
        """Return the task of the next group. Nothing changes by it."""
        ...

    def drawn(self, index: int) -> None:
        """Note which task that group got."""
        ...

    def ended(self, index: int, mean: float | None) -> None:
        """Note the mean reward of a group that has ended; None: no episode of it finished."""
        ...

    def to_metrics(self) -> Metrics:
        """Return the figures of the state."""
        ...


class MixedOrder:
    """Sources mixed by their weights; each goes through its tasks in epochs of its own."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool) -> None:
        self._sizes, self._weights = list(sizes), list(weights)
        self._first = first_indices(sizes)
        self._seed, self._shuffle = seed, shuffle
        self._counts = [0] * len(self._sizes)
        """Groups that each source gave a task."""
        self._orders: dict[int, tuple[int, list[int]]] = {}
        """Of each source: its epoch, and the order of that."""

    def draw(self, rng: random.Random) -> int:
        """Return the next task of a source that is drawn by its weight."""
        source = choose(rng, self._weights)
        epoch, position = divmod(self._counts[source], self._sizes[source])
        return self._first[source] + self._order(source, epoch)[position]

    def drawn(self, index: int) -> None:
        """Go on to the next task of its source."""
        self._counts[source_of(self._first, index)] += 1

    def ended(self, index: int, mean: float | None) -> None:
        """Do nothing: this order does not go by rewards."""

    def to_metrics(self) -> Metrics:
        """Return nothing: what was drawn says it all."""
        return {}

    def _order(self, source: int, epoch: int) -> list[int]:
        known = self._orders.get(source)
        if known is None or known[0] != epoch:
            order = list(range(self._sizes[source]))
            if self._shuffle:
                random.Random(f"{self._seed}/source {source}/{epoch}").shuffle(order)  # noqa: S311
            known = self._orders[source] = (epoch, order)
        return known[1]


def choose(rng: random.Random, weights: Sequence[float]) -> int:
    """Return an index, drawn by `weights`, of which at least one is above 0."""
    sums = list(accumulate(weights))
    drawn = rng.random() * sums[-1]
    last = max(i for i, weight in enumerate(weights) if weight > 0)  # where the product was rounded up to the sum
    return next((i for i, total in enumerate(sums) if drawn < total and weights[i] > 0), last)


def first_indices(sizes: Sequence[int]) -> list[int]:
    """Return the index of the first task of each source, where the tasks of all stand one behind another."""
    return [0, *accumulate(sizes)][:-1]


def source_of(first: Sequence[int], index: int) -> int:
    """Return the source of a task, by the first index of each."""
    return max(source for source, begin in enumerate(first) if begin <= index)
