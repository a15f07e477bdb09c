"""Count what a run or an evaluation has done lately, for `agentrl.rollout.alarms` to look at, and for the metrics of a step.

Controller ── attempts, groups ──► Health ──► alarms, metrics
main loop ──── steps ────────────►
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import get_args

from agentrl.record.trajectory import RootKind
from agentrl.store.outcome import Outcome
from agentrl.system.failure_text import failure_line

RECENT_EPISODES = 64
"""Attempts that metrics are taken of."""


@dataclass
class Health:
    """The counts of a run that goes on. The defaults are those of a run that has done nothing yet."""

    recent: deque[Counter[str]] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    """Of each of the last attempts that called the model: the whole numbers of `RecordFigures`, its roots by their kind,
    `rerendered_tokens`, and `altered`, its replies that were not sampled as the policy samples."""
    altered_by: list[str] = field(default_factory=list)
    """The fields of requests that had the last replies sampled otherwise than the policy samples."""
    example: list[int] = field(default_factory=list)
    """The last reply that could call a tool and calls none."""
    failures: int = 0
    """Attempts in a row, up to the last, that failed."""
    first_failure: str = ""
    """The failure that these began with, in a line that names its file."""
    complete: bool = False
    """Whether no attempt comes after these, so that few are judged too."""
    episode: int = 0
    """The attempt that ended last, by its number in the store."""
    highest_reward: float = -math.inf
    """The highest reward of an episode since the process started."""
    uniform_groups: int = 0
    """Groups in a row, up to the last that ended, within each of which all rewards were equal."""
    uniform_rewards: set[float] = field(default_factory=set)
    """Their rewards, two at most."""
    step: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last training step."""
    last_end: float = field(default_factory=time.monotonic)
    """When an episode or a training step ended, by time.monotonic."""
    doing: str = ""
    """What the main loop waits for, as a line says it; "": for a batch."""
    doing_since: float = 0.0
    """Since when, by time.monotonic."""

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Say for the length of the context that the main loop waits for `what`, and so does nothing else."""
        self.doing, self.doing_since = what, time.monotonic()
        try:
            yield
        finally:
            self.doing = ""

    def attempt_ended(self, outcome: Outcome, number: int) -> None:
        """Count one attempt at an episode, finished or failed. `number`: what the store calls it."""
        self.last_end = time.monotonic()
        self.episode = number
        counts = outcome.record.figures()
        if counts.replies:
            own = {name: value for name, value in vars(counts).items() if type(value) is int}
            more = {"rerendered_tokens": outcome.rerendered_tokens, "altered": len(counts.altered_by)}
            self.recent.append(Counter({**own, **outcome.roots, **more}))
        self.altered_by = counts.altered_by or self.altered_by
        self.example = counts.example or self.example
        if outcome.finished:
            self.failures = 0
            self.highest_reward = max(self.highest_reward, outcome.reward)
            return
        if not self.failures:
            self.first_failure = failure_line(outcome.error or "")
        self.failures += 1

    def resume(self, rewards: Sequence[float], episode: int, highest_reward: float) -> None:
        """Go on after uniform groups of earlier starts. `rewards`: that of each, one after another."""
        self.episode, self.highest_reward = episode, highest_reward
        for reward in rewards:
            self.group_ended([reward], uniform=True)

    def group_ended(self, rewards: Sequence[float], *, uniform: bool) -> None:
        """Count one group. `uniform`: all its rewards are equal, so it teaches nothing."""
        if not uniform:
            if len(rewards) > 1:
                self.uniform_groups = 0
                self.uniform_rewards.clear()
            return
        self.uniform_groups += 1
        if len(self.uniform_rewards) < 2:
            self.uniform_rewards.add(rewards[0])

    def step_ended(self, metrics: Mapping[str, float]) -> None:
        """Count one training step."""
        self.last_end = time.monotonic()
        self.step = metrics

    def counts(self) -> Counter[str]:
        """Return the sums over the recent attempts, with `roots`, those of every kind."""
        total = Counter[str]()
        for counts in self.recent:
            total.update(counts)
        total["roots"] = sum(total[kind] for kind in get_args(RootKind))
        return total

    def to_metrics(self) -> dict[str, float]:
        """Return what a step's line says of the recent attempts."""
        counts, episodes = self.counts(), max(1, len(self.recent))
        return {
            "roots_mean": counts["roots"] / episodes,
            "side_calls_mean": counts["side_call"] / episodes,
            "sub_agents_mean": counts["sub_agent"] / episodes,
            "compacted_mean": counts["compacted"] / episodes,
            "rerendered_share": counts["rerendered_tokens"] / max(1, counts["prompt_tokens"]),
            "left_out_share": counts["left_out_tokens"] / max(1, counts["sampled_tokens"]),
            "truncated_share": counts["truncated"] / max(1, counts["replies"]),
            "failed_calls_share": counts["failed_calls"] / max(1, counts["with_tools"]),
        }


def shares_text(metrics: Mapping[str, float]) -> str:
    """Return the shares of replies that `to_metrics` has, as a line shows them."""
    return f"cut off {metrics['truncated_share']:.0%}  failed tool calls {metrics['failed_calls_share']:.0%}"
