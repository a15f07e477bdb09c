"""What the user brings: the workflow file and the task file."""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path

from agentrl.episode import Episode, Reward, Task
from agentrl.errors import TaskFileError, WorkflowError

Workflow = Callable[[Episode], Awaitable[float | Reward]]


def load_workflow(path: Path) -> Workflow:
    """The `run` of a workflow file. Raises WorkflowError when there is none, or it is not async."""
    if not path.is_file():
        raise WorkflowError(f"the workflow file {path} does not exist")
    name = f"agentrl_workflow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkflowError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise WorkflowError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    run = getattr(module, "run", None)
    if run is None:
        raise WorkflowError(f"{path} defines no run; a workflow is `async def run(episode) -> float`")
    if not inspect.iscoroutinefunction(run):
        raise WorkflowError(f"run in {path} is not async; write `async def run(episode)`")
    return run  # type: ignore[no-any-return]


def load_tasks(path: Path) -> list[Task]:
    """The tasks of a JSON-lines file. Raises TaskFileError, with the line, when one is not a JSON object."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise TaskFileError(f"cannot read the task file {path}: {error.strerror}") from error
    tasks: list[Task] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise TaskFileError(f"{path}, line {number}: not valid JSON: {error}") from error
        if not isinstance(task, dict):
            raise TaskFileError(f"{path}, line {number}: a task must be a JSON object, not {type(task).__name__}")
        tasks.append(task)
    if not tasks:
        raise TaskFileError(f"{path} holds no tasks")
    return tasks


def task_of_group(group_id: int, task_count: int, seed: int) -> int:
    """The index of a group's task: every epoch visits all tasks, each in an order of its own."""
    epoch, position = divmod(group_id, task_count)
    return _order(task_count, seed, epoch)[position]


@lru_cache(maxsize=2)
def _order(task_count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(task_count))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311
    return order


def episode_seed(seed: int, group_id: int, sample: int) -> int:
    """The seed of one attempt."""
    return random.Random(f"{seed}/{group_id}/{sample}").getrandbits(31)  # noqa: S311
