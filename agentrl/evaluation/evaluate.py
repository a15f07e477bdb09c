"""Evaluation: the same workflow, every task k times, nothing trained."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import EvalConfig
from agentrl.episode import Task
from agentrl.errors import ConfigError, one_line
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import Runner
from agentrl.rollout.tasks import episode_seed

Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One episode of an evaluation: a line of its log."""

    task: int
    episode_index: int
    status: str
    reward: float
    metrics: dict[str, float]
    error: str | None
    duration_s: float


@dataclass(frozen=True)
class TaskResult:
    """What became of one task."""

    task: int
    samples: int
    passed: int
    mean_reward: float
    failed: int


@dataclass(frozen=True)
class Evaluation:
    """Rewards over a task set. A failed episode counts as reward 0."""

    mean_reward: float
    mean_reward_95: tuple[float, float]
    """Confidence interval, over tasks."""
    pass_at: dict[int, Interval]
    """k → the chance that at least one of k episodes of a task passes."""
    tasks: int
    episodes: int
    failed: int
    duration_s: float
    """Mean time of one episode."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Means of the workflow's metrics, over the episodes that have them."""
    per_task: list[TaskResult] = field(default_factory=list)
    first_error: str | None = None

    def to_json(self, *, per_task: bool = True) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self)
        if not per_task:
            del values["per_task"]
        return values


async def evaluate(
    runner: Runner,
    tasks: Sequence[Task],
    config: EvalConfig,
    *,
    seed: int = 0,
    done: Iterable[EvaluatedEpisode] = (),
    on_episode: Callable[[EvaluatedEpisode], None] | None = None,
) -> Evaluation:
    """Run every task `config.samples` times, but for the episodes in `done`.

    The same `seed` gives the same episode seeds.
    """
    episodes = {(e.task, e.episode_index): e for e in done if e.task < len(tasks) and e.episode_index < config.samples}
    slots = anyio.Semaphore(config.max_concurrent)

    async def one(task: int, episode_index: int) -> None:
        async with slots:
            outcome = await runner.run(tasks[task], episode_seed(seed, task, episode_index))
        episodes[task, episode_index] = episode = _episode(task, episode_index, outcome)
        if on_episode is not None:
            on_episode(episode)

    missing = [(t, s) for t in range(len(tasks)) for s in range(config.samples) if (t, s) not in episodes]
    async with anyio.create_task_group() as group:
        for task, episode_index in missing:
            group.start_soon(one, task, episode_index)
    return summarise([episodes[key] for key in sorted(episodes)], config.pass_reward)


def _episode(task: int, episode_index: int, outcome: Outcome) -> EvaluatedEpisode:
    reward = outcome.reward if outcome.status == "finished" else 0.0
    return EvaluatedEpisode(
        task, episode_index, outcome.status, reward, dict(outcome.metrics), outcome.error, outcome.duration_s
    )


def summarise(episodes: Sequence[EvaluatedEpisode], pass_reward: float) -> Evaluation:
    """The figures of an evaluation.

    pass@k of a task with n episodes of which c passed is 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, arXiv 2107.03374),
    for k the powers of 2 up to n, and n. Intervals are mean ± 1.96·s/√m over the m tasks, whose means are the
    independent draws (Miller 2024, arXiv 2411.00640); of a single task, over its episodes.
    """
    by_task: dict[int, list[EvaluatedEpisode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, []).append(episode)
    results = [
        TaskResult(
            task=task,
            samples=len(own),
            passed=sum(_passed(e, pass_reward) for e in own),
            mean_reward=sum(e.reward for e in own) / len(own),
            failed=sum(e.status == "failed" for e in own),
        )
        for task, own in by_task.items()
    ]
    alone = len(results) == 1
    mean = interval([e.reward for e in episodes] if alone else [r.mean_reward for r in results])
    n = min(r.samples for r in results)
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    pass_at = {k: _chance([pass_at_k(r.samples, r.passed, k) for r in results]) for k in ks}
    if alone:
        pass_at[1] = _chance([float(_passed(e, pass_reward)) for e in episodes])
    names = {name for e in episodes for name in e.metrics}
    errors = [e.error for e in episodes if e.status == "failed"]
    return Evaluation(
        mean_reward=mean.mean,
        mean_reward_95=(mean.low, mean.high),
        pass_at=pass_at,
        tasks=len(results),
        episodes=len(episodes),
        failed=len(errors),
        duration_s=sum(e.duration_s for e in episodes) / len(episodes),
        metrics={name: _mean([e.metrics[name] for e in episodes if name in e.metrics]) for name in sorted(names)},
        per_task=results,
        first_error=errors[0] if errors else None,
    )


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that k of n episodes, drawn without putting back, hold one of the `passed`."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent draws and its interval; of a single draw, nothing but the draw."""
    mean = _mean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = Z95 * deviation / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def _chance(values: Sequence[float]) -> Interval:
    """The interval of a probability, which ends at 0 and 1."""
    found = interval(values)
    return Interval(found.mean, max(0.0, found.low), min(1.0, found.high))


class EvaluationLog:
    """The episodes of an evaluation in a file of JSON lines, so that one that was interrupted goes on.

    The first line says what is evaluated: `identity`. Raises ConfigError when the file holds something else. Use it as
    a context manager; `done` are the episodes that it held, without the failed ones, which are run again.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        header = json.dumps({"evaluation": dict(identity)})
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            if lines and lines[0].rstrip(b"\n") != header.encode():
                raise ConfigError(
                    f"--out {path} holds something else than this evaluation; name another file, or remove it"
                )
            self.done, whole = _done(lines[1:])
            self._file = path.open("r+" if lines else "w")
            if lines:
                self._file.truncate(len(lines[0]) + whole)
                self._file.seek(len(lines[0]) + whole)
            else:
                self._file.write(header + "\n")
                self._file.flush()
        except OSError as error:
            raise ConfigError(f"--out {path} cannot be written: {error.strerror}; name another file") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"--out {path} holds a line that is no episode: {one_line(error)}; name another file, or remove it"
            ) from error

    def add(self, episode: EvaluatedEpisode) -> None:
        """Write one episode."""
        self._file.write(json.dumps(vars(episode)) + "\n")
        self._file.flush()

    def __enter__(self) -> EvaluationLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _done(lines: Sequence[bytes]) -> tuple[list[EvaluatedEpisode], int]:
    """The finished episodes of a log, and the bytes of its whole lines."""
    done, whole = [], 0
    for line in lines:
        if not line.endswith(b"\n"):
            break  # torn by a crash
        episode = EvaluatedEpisode(**json.loads(line))
        whole += len(line)
        if episode.status == "finished":
            done.append(episode)
    return done, whole


def _passed(episode: EvaluatedEpisode, pass_reward: float) -> bool:
    return episode.status == "finished" and episode.reward >= pass_reward


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
