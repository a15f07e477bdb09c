"""Check, before anything of a run is started, that what its tasks need is there.

A class of tasks (`task_type.py`) may have a class method `missing`, which is called once with all of a run's tasks:

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        "Return what the tasks need and cannot have here, each with its remedy, such as a folder, an image, an engine."

What it finds is one error. Of a stream nobody knows the tasks beforehand, so there it is each episode that finds out.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from agentrl.concurrency.threads import in_users_thread
from agentrl.config import RunConfig
from agentrl.episode import Task
from agentrl.errors import TaskFileError
from agentrl.rollout.drawn_tasks import DrawnTasks
from agentrl.rollout.task_type import TaskType
from agentrl.rollout.tasks import TaskList, Tasks

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
