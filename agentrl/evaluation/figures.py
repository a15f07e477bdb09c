"""The figures of an evaluation: mean reward, pass@k, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.errors import UsageError
from agentrl.record.end_reason import reasons_text
from agentrl.store.episodes import ListedEpisode
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode, RunTrajectory

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
class EvaluatedEpisode:
    """One episode of an evaluation."""

    task: int
    episode_index: int
    reason: str
    reward: float
    metrics: dict[str, float]
    error: str | None
    """The traceback of a failed one."""
    duration_s: float
    kept: RunEpisode | None = field(default=None, repr=False, compare=False)
    """The stored episode, with its token record. None: those of an evaluation that is a part of training are not kept."""

    def transcript(self) -> str:
        """Return what was said, turn by turn, with the special tokens of the chat format.

        Raises:
            UsageError: The episode was not kept, or the model's tokenizer is not there any more.
            StoreError: What was kept of it cannot be read.
        """
        return self._whole().transcript()

    @property
    def trajectories(self) -> list[RunTrajectory]:
        """Its paths, with every token.

        Raises:
            UsageError: The episode was not kept, or the model's tokenizer is not there any more.
            StoreError: What was kept of it cannot be read.
        """
        return self._whole().trajectories

    def _whole(self) -> RunEpisode:
        if self.kept is None:
            raise UsageError(
                f"episode {self.episode_index} of task {self.task} was not kept; agentrl.evaluate keeps them"
            )
        return self.kept


def evaluated_episode(task: int, episode_index: int, ended: Outcome | ListedEpisode) -> EvaluatedEpisode:
    """Return an episode as it ended."""
    metrics = dict(ended.metrics)
    return EvaluatedEpisode(task, episode_index, ended.reason, ended.reward, metrics, ended.error, ended.duration_s)


@dataclass(frozen=True)
class TaskResult:
    """The figures of one task."""

    task: int
    samples: int
    passed: int
    mean_reward: float
    failed: int
    name: str = ""
    """Its id, or the beginning and the end of its prompt, where the task has one."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Rewards over a task set. A failed episode counts as reward 0."""

    mean_reward: float
    mean_reward_95: tuple[float, float]
    """Confidence interval, over tasks."""
    pass_at: dict[int, Interval]
    """k → the chance that at least one of k episodes of a task passes."""
    tasks: int
    episodes: list[EvaluatedEpisode]
    """All of them, by task and episode index."""
    failed: int
    duration_s: float
    """Mean time of one episode."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Means of the workflow's metrics, over the episodes that have them."""
    per_task: list[TaskResult] = field(default_factory=list)
    first_error: str | None = None
    directory: Path | None = None
    """Where the episodes are kept: `agentrl.open_run` reads them again."""

    @property
    def recorded(self) -> bool:
        """Whether it is recorded what was said: not where the model is an endpoint's elsewhere."""
        return any(episode.kept.tokens for episode in self.episodes if episode.kept)

    def to_table(self) -> dict[str, str]:
        """Return the figures by their names, as text with what each is the mean of, in the order in which they are shown."""
        counted = " and count as reward 0" if self.failed else ""
        ends = reasons_text(Counter(episode.reason for episode in self.episodes))
        of = f"  n = {f'{self.tasks} tasks' if self.tasks > 1 else f'{len(self.episodes)} episodes'}"
        having = Counter(name for episode in self.episodes for name in episode.metrics)
        return {
            "mean reward [95 %]": f"{Interval(self.mean_reward, *self.mean_reward_95)}{of}",
            **{f"pass@{k}": f"{chance}{of}" for k, chance in self.pass_at.items()},
            **{name: f"{value:.4g}  n = {having[name]} episodes" for name, value in self.metrics.items()},
            **({"failures": ends[2:-1]} if ends else {}),
            "episodes": f"{len(self.episodes)}, of which {self.failed} failed{counted}; {self.duration_s:.2f} s each",
        }

    def to_metrics(self) -> dict[str, float]:
        """Return the figures under the names that trackers have of them."""
        return {
            "eval_mean_reward": self.mean_reward,
            **{f"eval_pass_at_{k}": chance.mean for k, chance in self.pass_at.items()},
            **{f"eval_{name}": value for name, value in self.metrics.items()},
            "eval_episodes": len(self.episodes),
            "eval_failed": self.failed,
        }

    def __repr__(self) -> str:
        figures = ", ".join(f"pass@{k}={chance.mean:.3f}" for k, chance in self.pass_at.items())
        mean = Interval(self.mean_reward, *self.mean_reward_95)
        return f"Evaluation(mean_reward={mean}, {figures}, tasks={self.tasks}, episodes={len(self.episodes)}, failed={self.failed})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it: its figures, and its first episodes that were kept."""
        from agentrl.viewer import export  # it stands above, and is loaded by who looks at it

        return export.evaluation_html(self)

    def to_json(self, *, per_task: bool = True) -> dict[str, Any]:
        """Return the figures as JSON values."""
        values = asdict(replace(self, episodes=[]))
        values["episodes"] = len(self.episodes)
        values["directory"] = None if self.directory is None else str(self.directory)
        if not per_task:
            del values["per_task"]
        return values


def summarise(episodes: Sequence[EvaluatedEpisode], pass_reward: float) -> Evaluation:
    """Return the figures of an evaluation.

    pass@k of a task with n episodes of which c passed is 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, arXiv 2107.03374),
    for k the powers of 2 up to n, and n. Intervals are over the m tasks, whose means are the independent draws (Miller 2024,
    arXiv 2411.00640); of a single task, over its episodes. They are Student's, mean ± t·s/√m, and Wilson's where all draws are 0 or 1.
    """
    results = task_results(episodes, pass_reward)
    # The rewards of a single task are draws themselves.
    draws = [e.reward for e in episodes] if len(results) == 1 else [r.mean_reward for r in results]
    mean = share_interval(draws) if {e.reward for e in episodes} <= {0.0, 1.0} else interval(draws)
    errors = [e.error for e in episodes if e.reason != "finished"]
    return Evaluation(
        mean_reward=mean.mean,
        mean_reward_95=(mean.low, mean.high),
        pass_at=pass_chances(results),
        tasks=len(results),
        episodes=list(episodes),
        failed=len(errors),
        duration_s=_mean([e.duration_s for e in episodes]),
        metrics=mean_metrics(episodes),
        per_task=results,
        first_error=errors[0] if errors else None,
    )


def task_results(episodes: Sequence[EvaluatedEpisode], pass_reward: float) -> list[TaskResult]:
    """Return what became of each task, in the order in which the tasks come."""
    by_task: dict[int, list[EvaluatedEpisode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, []).append(episode)
    return [
        TaskResult(
            task=task,
            samples=len(own),
            passed=sum(e.reason == "finished" and e.reward >= pass_reward for e in own),
            mean_reward=_mean([e.reward for e in own]),
            failed=sum(e.reason != "finished" for e in own),
        )
        for task, own in by_task.items()
    ]


def pass_chances(results: Sequence[TaskResult]) -> dict[int, Interval]:
    """Return pass@k for k the powers of 2 up to n, and n: the fewest episodes that a task has."""
    n = min(r.samples for r in results)
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    chances = {k: share_interval([pass_at_k(r.samples, r.passed, k) for r in results]) for k in ks}
    if len(results) == 1:
        (only,) = results
        chances[1] = share_interval([1.0] * only.passed + [0.0] * (only.samples - only.passed))
    return chances


def mean_metrics(episodes: Sequence[EvaluatedEpisode]) -> dict[str, float]:
    """Return the mean of each metric of the workflow's, over the episodes that have it."""
    names = sorted({name for e in episodes for name in e.metrics})
    return {name: _mean([e.metrics[name] for e in episodes if name in e.metrics]) for name in names}


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the chance that k of n episodes, drawn without putting back, hold one that passed.

    Args:
        n: Episodes.
        passed: How many of them passed.
        k: How many are drawn.
    """
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent draws and Student's interval of it; of a single draw, nothing but the draw."""
    mean, freedom = _mean(values), len(values) - 1
    if not freedom:
        return Interval(mean, mean, mean)
    t = T95_BELOW_3.get(freedom) or sum(term / freedom**power for power, term in enumerate(T95))
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def share_interval(values: Sequence[float]) -> Interval:
    """Return the mean of shares and its interval: Wilson's where all are 0 or 1, or all are equal; else Student's, which ends at 0 and 1."""
    if len(set(values)) > 1 and not set(values) <= {0.0, 1.0}:
        found = interval(values)
        return Interval(found.mean, max(0.0, found.low), min(1.0, found.high))
    n, share = len(values), _mean(values)
    centre = share + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2))
    low, high = ((centre + side) / (1 + Z95**2 / n) for side in (-half, half))
    return Interval(share, max(0.0, low), min(1.0, high))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
