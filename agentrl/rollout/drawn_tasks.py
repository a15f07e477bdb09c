"""Tasks that are drawn: by what came of the groups before, or from several sources.

The task of a group is drawn when it starts, by the seed, the group's number and what had ended until then:

                draw                           open_group
    order ──────────────────► task of a group ────────────► store: groups ──► restore: the groups keep their tasks, the order goes on
      ▲                                                          ▲
      └──── ended: mean reward of the group ◄── close_group ─────┘
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.episode import Task
from agentrl.rollout.sampling_order import Metrics, SamplingOrder, first_indices, source_of
from agentrl.rollout.task_history import GivenTask
from agentrl.rollout.tasks import GroupTask, fingerprint


@dataclass
class DrawnTasks:
    """Tasks of one source or several, in an order that is drawn."""

    tasks: Sequence[Task]
    """Those of all sources, one behind another."""
    sizes: Sequence[int]
    """Tasks of each source."""
    order: SamplingOrder
    described: str
    """The order and its settings: another text is another order."""
    seed: int = 0
    _drawn: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, index) of each group."""
    _visits: dict[int, int] = field(default_factory=dict)
    _last: dict[int, float] = field(default_factory=dict)
    """Mean reward of the last group of each task."""
    _recent: list[int] = field(default_factory=list)
    """What was drawn since the figures were taken last."""
    _recent_means: list[float] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """Their number and content, and how they are drawn."""
        return f"drawn from {len(self.tasks)} tasks {fingerprint(self.tasks)}, {self.described}, seed {self.seed}"

    def task_of_group(self, group_id: int) -> GroupTask | None:
        """Return the task that a group was given, or draw that of the next group."""
        while len(self._drawn) <= group_id:
            self._note(self._draw())
        epoch, index = self._drawn[group_id]
        return GroupTask(epoch, index, self.tasks[index])

    def group_ended(self, group_id: int, mean: float | None) -> None:
        """Note the mean reward of a group; None: none of its episodes finished."""
        self._ended(self._drawn[group_id][1], mean)

    def restore(self, groups: Iterable[GivenTask]) -> None:
        """Go on after the groups that a run has, which keep the tasks that they were given."""
        for group in groups:
            self._note(group.index)
            if group.ended:
                self._ended(group.index, group.mean)
        self._recent, self._recent_means = [], []

    def take_metrics(self) -> Metrics:
        """Return the figures of the state, and of what was drawn since they were taken last."""
        known, first = self._recent_means, first_indices(self.sizes)
        metrics = self.order.to_metrics() | {
            "drawn_groups": float(len(self._recent)),
            "drawn_last_reward_mean": sum(known) / len(known) if known else None,
        }
        if len(self.sizes) > 1 and self._recent:
            sources = [source_of(first, index) for index in self._recent]
            metrics |= {f"drawn_source_{i}": sources.count(i) / len(sources) for i in range(len(self.sizes))}
        self._recent, self._recent_means = [], []
        return metrics

    def _draw(self) -> int:
        return self.order.draw(random.Random(f"{self.seed}/task/{len(self._drawn)}"))  # noqa: S311

    def _note(self, index: int) -> None:
        self._drawn.append((self._visits.get(index, 0), index))
        self._visits[index] = self._visits.get(index, 0) + 1
        self._recent.append(index)
        if index in self._last:
            self._recent_means.append(self._last[index])
        self.order.drawn(index)

    def _ended(self, index: int, mean: float | None) -> None:
        if mean is not None:
            self._last[index] = mean
        self.order.ended(index, mean)
