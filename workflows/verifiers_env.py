"""Run an environment of the `verifiers` library (0.1.x, the Environments Hub's `load_environment`), unmodified.

A task is {"environment": ID, "row": i} and, as needed, "args" of its `load_environment` and "sampling" (sampling
arguments, over those of the environment). The reward and the metrics are the environment's own. The source `verifiers:ENV` makes the tasks of a whole
environment (`agentrl.rollout.verifiers_tasks`); to have them in files, which you may change:

    python -m agentrl.workflows.verifiers_env ID DIR [--args JSON]       # writes train.jsonl and eval.jsonl

Needs `pip install -e '/path/to/agentrl[verifiers]'`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import EpisodeError, TaskFileError
from agentrl.reporting.exit_code import exit_code_of
from agentrl.rollout.verifiers_tasks import dataset_of, load_environment


class VerifiersTask(BaseModel):
    """What a line of the task file needs. It may have more."""

    environment: str = Field(min_length=1)
    row: int = Field(default=0, ge=0)
    split: Literal["train", "eval"] = "train"
    args: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return the environments that cannot be loaded here, and the rows that they do not have."""
        return await in_thread(_missing, tasks)


def _missing(tasks: Sequence[VerifiersTask]) -> list[str]:
    last: dict[tuple[str, str, str], int] = {}
    for task in tasks:
        key = (task.environment, json.dumps(task.args, sort_keys=True), task.split)
        last[key] = max(task.row, last.get(key, 0))
    missing = []
    for (name, args, split), row in last.items():
        try:
            count = len(dataset_of(load_environment(name, args), split))
        except TaskFileError as error:
            missing.append(str(error))
            continue
        if row >= count:
            missing.append(
                f"row = {row}: the verifiers environment {name!r} has {count} rows to {split} on, of which the last is {count - 1}"
            )
    return missing


async def run(episode: Episode[Annotated[dict[str, Any], VerifiersTask]]) -> Reward:
    """Return the environment's reward, with its metrics.

    Raises:
        EpisodeError: The rollout failed.
    """
    task = episode.task
    args = json.dumps(task.get("args", {}), sort_keys=True)
    environment = await in_thread(load, task["environment"], args)
    row = await in_thread(row_of, environment, int(task.get("row", 0)), task.get("split", "train"))
    sampling = deepcopy({**environment.sampling_args, **task.get("sampling", {})})
    output = await environment.run_rollout(row, episode.client, episode.model, sampling)
    if output.get("error"):
        raise EpisodeError(f"the rollout of {task['environment']} failed: {output['error']}")
    metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
    return Reward(float(output.get("reward") or 0.0), metrics)


def load(name: str, args: str) -> Any:
    """Return an environment by its name or folder; each is loaded once.

    Args:
        name: The name or folder.
        args: The arguments of its `load_environment`, as JSON.

    Raises:
        EpisodeError: It cannot be loaded.
    """
    try:
        return load_environment(name, args)
    except TaskFileError as error:
        raise EpisodeError(str(error)) from error


def row_of(environment: Any, index: int, split: str = "train") -> dict[str, Any]:
    """Return one row of an environment's dataset, as its rollouts take it."""
    return dict(dataset_of(environment, split)[index])


def main() -> int:
    """Write the task files of an environment."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.workflows.verifiers_env", description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--args", default="{}", help="arguments of load_environment, as JSON")
    options = parser.parse_args()
    environment = load(options.environment, options.args)
    options.directory.mkdir(parents=True, exist_ok=True)
    for split, dataset in (("train", environment.get_dataset()), ("eval", environment.get_eval_dataset())):
        path = options.directory / f"{split}.jsonl"
        task = {"environment": options.environment, "args": json.loads(options.args), "split": split}
        path.write_text("".join(json.dumps({**task, "row": row}) + "\n" for row in range(len(dataset))))
        print(f"{path}: {len(dataset)} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
