"""The staleness gate and the order of consumption: when a group may start, and which groups make the next batch.

    start ─► running ─► finished ─► taken into a batch
                  └───► rejected    (its slot goes back to the gate)

docs/staleness.md derives the bound that the window implies. This class holds no clock and does no waiting, so that
the bound can be checked on simulated times. A call looks at (η + 2)·G + W groups at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from agentrl.config import RolloutConfig

State = Literal["running", "finished", "taken"]


class StalenessGate:
    """Groups in the order in which they started, from the oldest that is not taken.

    `groups_per_batch` is G, `max_staleness` is η, `window` is W, by default G. The policy version starts at `version` and rises by one a batch.
    """

    def __init__(
        self, *, groups_per_batch: int, max_staleness: int, window: int | None = None, version: int = 0
    ) -> None:
        self.groups_per_batch = groups_per_batch
        self.max_staleness = max_staleness
        self.version = version
        self._window = window or groups_per_batch
        self._started = version * groups_per_batch
        """Groups started and not rejected, those of earlier versions included."""
        self._states: dict[int, State] = {}

    @property
    def bound(self) -> int:
        """The largest staleness that a token of a batch can have: η + ⌈(W−1)/G⌉, and 0 where η = 0."""
        if not self.max_staleness:
            return 0
        return self.max_staleness + math.ceil((self._window - 1) / self.groups_per_batch)

    def can_start(self) -> bool:
        """Whether one more group may start: started_and_not_rejected < (v + η + 1)·G (AReaL, arXiv 2505.24298, eq. 3)."""
        return self._started < (self.version + self.max_staleness + 1) * self.groups_per_batch

    def start(self, group_id: int) -> None:
        """Note that a group starts."""
        self._states[group_id] = "running"
        self._started += 1

    def start_taken(self, group_id: int) -> None:
        """Note a group that was taken before a restart, by a batch that `version` counts, while one that had started before it was not.

        It fills the window as it did.
        """
        self._take([group_id])

    def finish(self, group_id: int) -> None:
        """Note that a group is ready to be trained on."""
        self._states[group_id] = "finished"

    def reject(self, group_id: int) -> None:
        """Give a group's slot back."""
        self._started -= 1
        del self._states[group_id]
        self._trim()

    def take(self) -> list[int] | None:
        """Return the ids of the next batch, oldest first, or None while it is not complete.

        A finished group may be taken if it is among the W groups, taken ones included, that begin with the oldest one not
        yet taken. Of those that may, the oldest are: so every finished group older than the oldest running one may be taken,
        and beyond it those among the W groups that begin with it.
        """
        batch = list(islice(self._finished(self._window), self.groups_per_batch))
        return self._take(batch) if len(batch) == self.groups_per_batch else None

    def take_rest(self) -> list[int]:
        """Return the ids of the finished groups, when no other will come: at most a batch, oldest first."""
        return self._take(list(islice(self._finished(None), self.groups_per_batch)))

    def advance(self) -> None:
        """Note that the engine serves the next version."""
        self.version += 1

    def _finished(self, window: int | None) -> Iterator[int]:
        """Yield the finished groups that may be taken, oldest first. `window`: W; None: all of them."""
        seen = 0  # groups from the oldest running one on
        for group, state in self._states.items():
            seen += bool(seen or state == "running")
            if window is not None and seen > window:
                return
            if state == "finished":
                yield group

    def _take(self, groups: list[int]) -> list[int]:
        for group in groups:
            self._states[group] = "taken"
        self._trim()
        return groups

    def _trim(self) -> None:
        """Forget the groups before the oldest that is not taken."""
        while self._states and self._states[oldest := next(iter(self._states))] == "taken":
            del self._states[oldest]


def gate_of(rollout: RolloutConfig, version: int = 0) -> StalenessGate:
    """Return the gate of a configuration, at a policy version."""
    return StalenessGate(
        groups_per_batch=rollout.groups_per_batch,
        max_staleness=rollout.max_staleness,
        window=rollout.window,
        version=version,
    )
