"""The staleness gate and the order of consumption: when a group may start, and which groups make the next batch.

    start ─► running ─► finished ─► taken into a batch
                  └───► rejected    (its slot goes back to the gate)

docs/staleness.md derives the bound that each order implies. This class holds no clock and does no waiting, so that
the bound can be checked on simulated times.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

Order = Literal["fifo", "window", "greedy"]


@dataclass(eq=False)
class _Group:
    id: int
    state: Literal["running", "finished", "taken"] = "running"


class StalenessGate:
    """Groups in the order in which they started, from the oldest that is not taken.

    `groups_per_batch` is G, `max_staleness` is η, `window` is W (order "window" only). The policy version starts at
    `version` and rises by one a batch.
    """

    def __init__(
        self, *, groups_per_batch: int, max_staleness: int, order: Order, window: int | None = None, version: int = 0
    ) -> None:
        self.groups_per_batch = groups_per_batch
        self.max_staleness = max_staleness
        self.version = version
        self._reach = {"fifo": 1, "window": window or groups_per_batch, "greedy": None}[order]
        self._started = version * groups_per_batch
        """Groups started and not rejected, those of earlier versions included."""
        self._groups: deque[_Group] = deque()
        self._by_id: dict[int, _Group] = {}

    @property
    def bound(self) -> int | None:
        """The largest staleness that a token of a batch can have: η + ⌈(W−1)/G⌉, and 0 where η = 0; None: there is no bound (greedy)."""
        if not self.max_staleness:
            return 0
        if self._reach is None:
            return None
        return self.max_staleness + math.ceil((self._reach - 1) / self.groups_per_batch)

    def can_start(self) -> bool:
        """Whether one more group may start: started_and_not_rejected < (v + η + 1)·G (AReaL, arXiv 2505.24298, eq. 3)."""
        return self._started < (self.version + self.max_staleness + 1) * self.groups_per_batch

    def start(self, group_id: int) -> None:
        """Note that a group starts."""
        group = self._by_id[group_id] = _Group(group_id)
        self._groups.append(group)
        self._started += 1

    def finish(self, group_id: int) -> None:
        """Note that a group is ready to be trained on."""
        self._by_id[group_id].state = "finished"

    def reject(self, group_id: int) -> None:
        """Give a group's slot back."""
        self._groups.remove(self._by_id.pop(group_id))
        self._started -= 1
        self._trim()

    def take(self) -> list[int] | None:
        """Return the ids of the next batch, oldest first, or None while it is not complete.

        A finished group may be taken if it is among the W groups, taken ones included, that begin with the oldest one not
        yet taken.
        """
        taken: list[_Group] = []
        window = list(self._groups)
        while len(taken) < self.groups_per_batch:
            reach = window[: self._reach]
            chosen = next((g for g in reach if g.state == "finished" and g not in taken), None)
            if chosen is None:
                return None
            taken.append(chosen)
            while window and (window[0].state == "taken" or window[0] in taken):
                del window[0]
        return self._hand_out(taken)

    def take_rest(self) -> list[int]:
        """Return the ids of the finished groups, when no other will come: at most a batch, oldest first."""
        return self._hand_out([group for group in self._groups if group.state == "finished"][: self.groups_per_batch])

    def advance(self) -> None:
        """Note that the engine serves the next version."""
        self.version += 1

    def _hand_out(self, groups: list[_Group]) -> list[int]:
        for group in groups:
            group.state = "taken"
            del self._by_id[group.id]
        self._trim()
        return sorted(group.id for group in groups)

    def _trim(self) -> None:
        while self._groups and self._groups[0].state == "taken":
            self._groups.popleft()
