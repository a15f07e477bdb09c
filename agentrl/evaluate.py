"""Evaluation: the same workflow, every task once, nothing trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from agentrl.episode import Task
from agentrl.rollout.run_episode import EpisodeRunner, Outcome
from agentrl.rollout.tasks import episode_seed


@dataclass(frozen=True)
class Evaluation:
    """Rewards over a task set. A failed episode counts as reward 0."""

    mean_reward: float
    episodes: int
    failed: int
    duration_s: float
    """Mean time of one episode."""
    first_error: str | None = None


async def evaluate(
    runner: EpisodeRunner,
    tasks: Sequence[Task],
    *,
    max_concurrent: int,
    seed: int = 0,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Evaluation:
    """Run every task once, at most `max_concurrent` at a time. The same `seed` gives the same episode seeds."""
    outcomes: list[Outcome] = []
    slots = anyio.Semaphore(max_concurrent)

    async def one(index: int, task: Task) -> None:
        async with slots:
            outcome = await runner.run(task, episode_seed(seed, index, 0))
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            group.start_soon(one, index, task)
    failures = [outcome.error for outcome in outcomes if outcome.status == "failed"]
    return Evaluation(
        mean_reward=sum(o.reward for o in outcomes if o.status == "finished") / len(outcomes),
        episodes=len(outcomes),
        failed=len(failures),
        duration_s=sum(o.duration_s for o in outcomes) / len(outcomes),
        first_error=failures[0] if failures else None,
    )
