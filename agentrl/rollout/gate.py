"""The staleness gate and the order of consumption: when a group may start, and which groups make the next batch.

    start ─► running ─► finished ─► taken into a batch
                  └───► rejected    (its slot goes back to the gate)

docs/staleness.md derives the bound that each order implies. This class holds no clock and does no waiting, so that
the bound can be checked on simulated times. What happens to a group costs the same however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Order = Literal["fifo", "window", "greedy"]


@dataclass(eq=False)
class _Group:
    """One of a list in the order in which they started; rejected ones are no part of it."""

    id: int
    state: Literal["running", "finished", "taken"] = "running"
    reached: bool = False
    """Whether the next batch may take it, once it is finished. It stays so."""
    before: _Group | None = None
    after: _Group | None = None


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
        self._by_id: dict[int, _Group] = {}
        """Those that are not taken."""
        self._oldest: _Group | None = None
        self._youngest: _Group | None = None
        self._oldest_running: _Group | None = None
        self._first_unreached: _Group | None = None
        self._reached_from_running = 0
        """Reached groups from the oldest running one on: W, where there are so many."""
        self._ready = 0
        """Groups that are finished and reached."""

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
        group = self._by_id[group_id] = _Group(group_id, before=self._youngest)
        if self._youngest is None:
            self._oldest = group
        else:
            self._youngest.after = group
        self._youngest = group
        self._oldest_running = self._oldest_running or group
        self._first_unreached = self._first_unreached or group
        self._started += 1
        self._extend_reach()

    def start_taken(self, group_id: int) -> None:
        """Note a group that was taken before a restart, by a batch that `version` counts, while one that had started before it was not.

        It fills the window as it did.
        """
        self.start(group_id)
        self._started -= 1
        self._by_id.pop(group_id).state = "taken"
        self._extend_reach()

    def finish(self, group_id: int) -> None:
        """Note that a group is ready to be trained on."""
        group = self._by_id[group_id]
        group.state = "finished"
        self._ready += group.reached
        self._extend_reach()

    def reject(self, group_id: int) -> None:
        """Give a group's slot back."""
        group = self._by_id.pop(group_id)
        self._started -= 1
        self._reached_from_running -= group.reached
        if self._oldest_running is group:
            self._oldest_running = group.after
        if self._first_unreached is group:
            self._first_unreached = group.after
        self._unlink(group)
        self._extend_reach()
        self._trim()

    def take(self) -> list[int] | None:
        """Return the ids of the next batch, oldest first, or None while it is not complete.

        A finished group may be taken if it is among the W groups, taken ones included, that begin with the oldest one not
        yet taken. Of those that may, the oldest are: so every finished group older than the oldest running one may be taken,
        and beyond it those among the W groups that begin with it.
        """
        if self._ready < self.groups_per_batch:
            return None
        return self._hand_out()

    def take_rest(self) -> list[int]:
        """Return the ids of the finished groups, when no other will come: at most a batch, oldest first."""
        return self._hand_out()

    def advance(self) -> None:
        """Note that the engine serves the next version."""
        self.version += 1

    def _hand_out(self) -> list[int]:
        taken = list(islice(self._finished(), self.groups_per_batch))
        for group in taken:
            group.state = "taken"
            self._ready -= group.reached
            del self._by_id[group.id]
        self._trim()
        return sorted(group.id for group in taken)

    def _finished(self) -> Iterator[_Group]:
        group = self._oldest
        while group is not None:
            if group.state == "finished":
                yield group
            group = group.after

    def _extend_reach(self) -> None:
        """Move the reach on to where it begins and ends now."""
        while True:
            oldest, unreached = self._oldest_running, self._first_unreached
            if unreached is not None and (
                oldest is None or self._reach is None or self._reached_from_running < self._reach
            ):
                unreached.reached = True
                self._ready += unreached.state == "finished"
                self._reached_from_running += 1
                self._first_unreached = unreached.after
            elif oldest is not None and oldest.state != "running":
                self._oldest_running = oldest.after
                self._reached_from_running -= 1
            else:
                return

    def _trim(self) -> None:
        while self._oldest is not None and self._oldest.state == "taken":
            self._unlink(self._oldest)

    def _unlink(self, group: _Group) -> None:
        if group.before is None:
            self._oldest = group.after
        else:
            group.before.after = group.after
        if group.after is None:
            self._youngest = group.before
        else:
            group.after.before = group.before
