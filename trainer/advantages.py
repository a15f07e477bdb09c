"""Group advantages: how much better a reward is than what the same task usually gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Estimator = Literal["grpo", "dr_grpo", "rloo"]
EPSILON = 1e-6
"""Keeps GRPO's division finite in a group whose rewards are all equal."""


@dataclass(frozen=True)
class Baseline:
    """What turns a reward of one episode into an advantage: (reward − mean) / scale."""

    mean: float
    scale: float

    def advantage(self, reward: float) -> float:
        """The advantage of `reward`."""
        return (reward - self.mean) / self.scale


def baselines(rewards: Sequence[float], estimator: Estimator) -> list[Baseline]:
    """One baseline an episode of a group of n.

    grpo: A = (r − mean) / (std + 1e-6), std over n (DeepSeekMath, arXiv 2402.03300).
    dr_grpo: A = r − mean, free of the bias towards easy and hard tasks (Liu et al. 2025, arXiv 2503.20783).
    rloo: A = r − mean of the n−1 others (Ahmadian et al. 2024, arXiv 2402.14740). A group of one has baseline 0.
    """
    n = len(rewards)
    mean = sum(rewards) / n
    if estimator == "grpo":
        std = (sum((reward - mean) ** 2 for reward in rewards) / n) ** 0.5
        return [Baseline(mean, std + EPSILON)] * n
    if estimator == "dr_grpo":
        return [Baseline(mean, 1.0)] * n
    return [Baseline((n * mean - reward) / (n - 1) if n > 1 else 0.0, 1.0) for reward in rewards]
