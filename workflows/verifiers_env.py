"""Run an environment of the `verifiers` library (0.4), unmodified.

A task is {"environment": ID, "row": i} and, as needed, "args" (the library's `[env]` block, such as {"agent": {"max_turns": 4}}) and "sampling"
(sampling arguments). The reward and the metrics are the environment's own. The source `verifiers:ENV` makes the tasks of a whole environment
(docs/environments.md). An environment has one agent; one with several fails its episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import httpx
from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import EpisodeError, TaskFileError
from agentrl.tasks.verifiers_tasks import count_tasks, env_block, server_url


class VerifiersTask(BaseModel):
    """A line of the task file."""

    environment: str = Field(min_length=1)
    row: int = Field(default=0, ge=0)
    args: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return the environments that cannot be loaded here, and the rows that they do not have."""
        by_row = sorted(tasks, key=lambda task: task.row)
        last_of_each = {env_block(task.environment, task.args): task for task in by_row}
        missing = []
        for task in last_of_each.values():
            try:
                count = await in_thread(count_tasks, task.environment, task.args)
                if task.row >= count:
                    missing.append(
                        f"row = {task.row}: the verifiers environment {task.environment!r} has {count} tasks"
                    )
            except TaskFileError as error:
                missing.append(str(error))
        return missing


async def run(episode: Episode[VerifiersTask]) -> Reward:
    """Return the environment's reward, with its metrics.

    Raises:
        EpisodeError: The environment failed.
    """
    task = episode.task
    asked = {
        "env": env_block(task.environment, task.args),
        "row": task.row,
        "model": episode.model,
        "base_url": episode.base_url,
        "api_key": episode.api_key,
        "sampling": task.sampling,
    }
    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:  # noqa: S113, rollout.episode_timeout_s bounds it
        answer = (await http.post(f"{await in_thread(server_url)}/episode", json=asked)).json()
    if "error" in answer:
        raise EpisodeError(f"the verifiers environment {task.environment!r} failed: {answer['error']}")
    return Reward(answer["reward"], answer["metrics"])
