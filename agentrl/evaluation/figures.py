"""The figures of an evaluation: mean reward, pass@k, and how sure they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agentrl.record.end_reason import reasons_text
from agentrl.store.episodes import ListedEpisode
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode
from agentrl.system.failure_text import users_part

Ended = Outcome | ListedEpisode
"""An episode that has ended, as its end or as it is kept."""
Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""
T95 = (Z95, 2.372271, 2.822500, 2.555852, 1.589534)
"""The same of Student's t with d degrees of freedom, as a series in 1/d (Abramowitz and Stegun 26.7.5); below 3 it is no good."""
T95_BELOW_3 = {1: 12.706205, 2: 4.302653}


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class TaskResult:
    """The figures of one task."""

    task: int
    samples: int
    passed: int
    mean_reward: float
    failed: int
    name: str
    """Its id, or the beginning and the end of its prompt or its first text, where the task has one."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Rewards over a task set. A failed episode counts as reward 0."""

    mean_reward: float
    mean_reward_95: tuple[float, float]
    """Confidence interval, over tasks."""
    pass_at: dict[int, Interval]
    """k → the chance that at least one of k episodes of a task passes."""
    tasks: int
    episodes: list[RunEpisode]
    """All of them, by task and episode index; none where they are not kept, as in an evaluation that is a part of training."""
    failed: int
    duration_s: float
    """Mean time of one episode."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Means of the workflow's metrics, over the episodes that have them."""
    per_task: list[TaskResult] = field(default_factory=list)
    first_error: str | None = None
    """Of the first episode that failed, what its user needs to see."""
    directory: Path | None = None
    """Where the episodes are kept: `agentrl.open_run` reads them again."""

    @property
    def episode_count(self) -> int:
        """The number of its episodes, kept or not."""
        return sum(row.samples for row in self.per_task)

    def to_table(self) -> dict[str, str]:
        """Return the figures by their names, as text with what each is the mean of, in the order in which they are shown."""
        counted = " and count as reward 0" if self.failed else ""
        ends = reasons_text(Counter(episode.reason for episode in self.episodes))
        of = f"  n = {f'{self.tasks} tasks' if self.tasks > 1 else f'{self.episode_count} episodes of one task'}"
        having = Counter(name for episode in self.episodes for name in episode.metrics)
        return {
            "mean reward [95 %]": f"{Interval(self.mean_reward, *self.mean_reward_95)}{of}",
            **{f"pass@{k}": f"{chance}{of}" for k, chance in self.pass_at.items()},
            **{name: f"{value:.4g}  n = {having[name]} episodes" for name, value in self.metrics.items()},
            **({"failures": ends[2:-1]} if ends else {}),
            "episodes": f"{self.episode_count}, of which {self.failed} failed{counted}; {self.duration_s:.2f} s each",
        }

    def to_metrics(self) -> dict[str, float]:
        """Return the figures under the names that trackers have of them."""
        return {
            "eval_mean_reward": self.mean_reward,
            **{f"eval_pass_at_{k}": chance.mean for k, chance in self.pass_at.items()},
            **{f"eval_{name}": value for name, value in self.metrics.items()},
            "eval_episodes": self.episode_count,
            "eval_failed": self.failed,
        }

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(f'{name}: {value}' for name, value in self.to_table().items())})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it: its figures, and its first episodes that were kept."""
        from agentrl.viewer import export  # it stands above, and is loaded by who looks at it

        return export.evaluation_html(self)

    def to_json(self, *, per_task: bool = True) -> dict[str, Any]:
        """Return the figures as JSON values."""
        values = asdict(replace(self, episodes=[]))
        values["episodes"] = self.episode_count
        values["directory"] = None if self.directory is None else str(self.directory)
        if not per_task:
            del values["per_task"]
        return values


def summarise(by_task: Sequence[Sequence[Ended]], names: Sequence[str], pass_reward: float) -> Evaluation:
    """Return the figures of an evaluation.

    pass@k of a task with n episodes of which c passed is 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, arXiv 2107.03374),
    for k the powers of 2 up to n, and n. Intervals are over the m tasks, whose means are the independent draws (Miller 2024,
    arXiv 2411.00640); of a single task, over its episodes. They are Student's, mean ± t·s/√m, and Wilson's where all draws are 0 or 1 (of pass@k, also where all are equal).

    Args:
        by_task: The episodes of each task.
        names: The name of each task.
        pass_reward: The reward from which an episode passes.
    """
    results = [
        TaskResult(
            task=task,
            samples=len(own),
            passed=sum(e.reason == "finished" and e.reward >= pass_reward for e in own),
            mean_reward=fmean(e.reward for e in own),
            failed=sum(e.reason != "finished" for e in own),
            name=name,
        )
        for task, (own, name) in enumerate(zip(by_task, names, strict=True))
    ]
    episodes = [episode for own in by_task for episode in own]
    # The rewards of a single task are draws themselves.
    draws = [e.reward for e in episodes] if len(results) == 1 else [r.mean_reward for r in results]
    mean = interval(draws, shares={e.reward for e in episodes} <= {0.0, 1.0})
    metrics = sorted({name for e in episodes for name in e.metrics})
    errors = [e.error for e in episodes if e.reason != "finished"]
    return Evaluation(
        mean_reward=mean.mean,
        mean_reward_95=(mean.low, mean.high),
        pass_at=pass_chances(results),
        tasks=len(results),
        episodes=[episode for episode in episodes if isinstance(episode, RunEpisode)],
        failed=len(errors),
        duration_s=fmean(e.duration_s for e in episodes),
        metrics={name: fmean(e.metrics[name] for e in episodes if name in e.metrics) for name in metrics},
        per_task=results,
        first_error=users_part(errors[0] or "") if errors else None,
    )


def pass_chances(results: Sequence[TaskResult]) -> dict[int, Interval]:
    """Return pass@k for k the powers of 2 up to n, and n: the fewest episodes that a task has."""
    n = min(r.samples for r in results)
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    chances = {k: interval([pass_at_k(r.samples, r.passed, k) for r in results], shares=True) for k in ks}
    if len(results) == 1:
        (only,) = results
        chances[1] = interval([1.0] * only.passed + [0.0] * (only.samples - only.passed), shares=True)
    return chances


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the chance that k of n episodes, drawn without putting back, hold one that passed.

    Args:
        n: Episodes.
        passed: How many of them passed.
        k: How many are drawn.
    """
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def interval(values: Sequence[float], *, shares: bool = False) -> Interval:
    """Return the mean of independent draws and its interval: Student's, and of a single draw nothing but the draw.

    Of shares it is within 0 and 1: Wilson's where all are 0 or 1, or all are equal; else Student's, which ends there.

    Args:
        values: The draws.
        shares: Whether they are shares.
    """
    mean, n = fmean(values), len(values)
    centre, half = mean, 0.0
    if shares and (len(set(values)) == 1 or set(values) <= {0.0, 1.0}):
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    elif n > 1:
        t = T95_BELOW_3.get(n - 1) or sum(term / (n - 1) ** power for power, term in enumerate(T95))
        half = t * stdev(values) / math.sqrt(n)
    low, high = centre - half, centre + half
    return Interval(mean, max(0.0, low), min(1.0, high)) if shares else Interval(mean, low, high)
