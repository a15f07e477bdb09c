"""A tracker of a user's own, which keeps all that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl.tracking.tracker import Sample, TrackedRun


class KeepingTracker:
    made: ClassVar[list[KeepingTracker]] = []

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.given: list[tuple[Any, ...]] = []
        self.made.append(self)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.given.append(("log", step, metrics))

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        self.given.append(("show", step, samples))

    def alarm(self, step: int, text: str) -> None:
        self.given.append(("alarm", step, text))

    def close(self) -> None:
        self.given.append(("close",))
