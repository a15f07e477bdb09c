"""Run an environment of the `verifiers` library (0.1.x, the Environments Hub's `load_environment`), unmodified.

A task is {"environment": ID, "row": i} and, as needed, "split" ("train" or "eval"), "args" of its `load_environment` and "sampling" (sampling
arguments, over those of the environment). The reward and the metrics are the environment's own. The source `verifiers:ENV` makes the tasks of
a whole environment (`agentrl.tasks.verifiers_tasks`).

Needs `pip install -e '/path/to/agentrl[verifiers]'`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import EpisodeError, TaskFileError
from agentrl.tasks.verifiers_tasks import dataset_of, load_environment


class VerifiersTask(BaseModel):
    """A line of the task file."""

    environment: str = Field(min_length=1)
    row: int = Field(default=0, ge=0)
    split: Literal["train", "eval"] = "train"
    args: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return the environments that cannot be loaded here, and the rows that they do not have."""
        last: dict[str, Self] = {}
        for task in tasks:
            key = json.dumps([task.environment, task.args, task.split], sort_keys=True)
            if key not in last or task.row > last[key].row:
                last[key] = task
        missing = []
        for task in last.values():
            try:
                await in_thread(task.load)
            except TaskFileError as error:
                missing.append(str(error))
        return missing

    def load(self) -> tuple[Any, dict[str, Any]]:
        """Return the environment, which is loaded once, and the row of its dataset, as its rollouts take it.

        Raises:
            TaskFileError: It cannot be loaded, or has no such row.
        """
        environment = load_environment(self.environment, json.dumps(self.args, sort_keys=True))
        dataset = dataset_of(environment, self.split)
        if self.row >= len(dataset):
            raise TaskFileError(
                f"row = {self.row}: the verifiers environment {self.environment!r} has {len(dataset)} rows to {self.split} on, of which the last is "
                f"{len(dataset) - 1}"
            )
        return environment, dict(dataset[self.row])


async def run(episode: Episode[VerifiersTask]) -> Reward:
    """Return the environment's reward, with its metrics.

    Raises:
        EpisodeError: The rollout failed.
        TaskFileError: The environment cannot be loaded, or has no such row.
    """
    task = episode.task
    environment, row = await in_thread(task.load)
    sampling = deepcopy({**environment.sampling_args, **task.sampling})
    output = await environment.run_rollout(row, episode.client, episode.model, sampling)
    if output.get("error"):
        raise EpisodeError(f"the rollout of {task.environment} failed: {output['error']}")
    metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
    return Reward(float(output.get("reward") or 0.0), metrics)
