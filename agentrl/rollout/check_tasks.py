"""Check, before anything of a run is started, that what its tasks need is there.

A class of tasks (`task_type.py`) may have a class method `missing`, which is called once with all of a run's tasks:

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        "Return what the tasks need and cannot have here, each with its remedy, such as a folder, an image, an engine."

What it finds is one error. Of a stream nobody knows the tasks beforehand, so there it is each episode that finds out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

from agentrl.config import RunConfig
from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError
from agentrl.rollout.workflow import Workflow
from agentrl.system.tasks import in_users_thread
from agentrl.tasks.curriculum import DrawnTasks
from agentrl.tasks.task_type import TaskType
from agentrl.tasks.tasks import TaskList, Tasks

SHOWN = 5
"""Missing things that the error names."""


async def check_nothing_missing(task_type: TaskType | None, tasks: Sequence[Task], config: RunConfig) -> None:
    """Check that all that tasks need is there.

    Args:
        task_type: The workflow's class of tasks, which says what that is; None: it needs nothing.
        tasks: The tasks.
        config: The run's.

    Raises:
        TaskFileError: Something is missing; the message names each thing and its remedy.
    """
    find: Any = getattr(task_type and task_type.model, "missing", None)
    if task_type is None or not inspect.iscoroutinefunction(find) or not tasks:  # a field may have that name
        return
    validate = task_type.adapter.validate_python
    values = await in_users_thread(lambda: [validate(task) for task in tasks])
    missing: list[str] = await find(values, config)
    if not missing:
        return
    if len(missing) == 1:
        raise TaskFileError(missing[0])
    first = f" The first {SHOWN}:" if len(missing) > SHOWN else ""
    shown = "".join(f"\n- {one}" for one in missing[:SHOWN])
    raise TaskFileError(f"{len(missing)} things that the tasks need are missing.{first}{shown}")


def tasks_at_hand(source: Tasks) -> Sequence[Task]:
    """Return the tasks of a source that are known before they are drawn: all of a list, none of a stream."""
    return source.tasks if isinstance(source, TaskList | DrawnTasks) else ()


def unsendable(task: Task, name: str = "the task") -> str | None:
    """Return why a task, of this name, cannot be sent to a worker process, as it is no plain JSON; None: it can."""
    for key, value in task.items():
        try:
            same = json.loads(json.dumps({key: value})) == {key: value}
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            return (
                f"{name} cannot be sent to a worker process: its field {key!r} ({type(value).__name__}) is not plain JSON; write it as JSON "
                "values, or set `rollout.workers` = 0"
            )
    return None


def check_for_workers(workflow: Workflow | None, tasks: Tasks, held_out: Sequence[Task]) -> None:
    """Check that a workflow and its tasks can be sent to worker processes.

    The tasks of a stream are not known yet: one that cannot be sent fails its episodes.

    Args:
        workflow: A function that was passed; None: it is loaded from a file.
        tasks: The tasks of the groups.
        held_out: The tasks of evaluations.

    Raises:
        ConfigError: The workflow was passed as a function.
        TaskFileError: A task is not JSON.
    """
    if workflow is not None:
        raise ConfigError(
            "`rollout.workers` runs the workflow in other processes, which load it from a file: name the file with `workflow` in "
            "the configuration instead of passing a function, or set `rollout.workers` = 0"
        )
    for kind, sequence in (("task", tasks_at_hand(tasks)), ("held-out task", held_out)):
        for index, task in enumerate(sequence):
            if (fault := unsendable(task, f"{kind} {index}")) is not None:
                raise TaskFileError(fault)
