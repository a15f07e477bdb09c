"""Whether a workflow and its tasks can be sent to worker processes."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError
from agentrl.rollout.drawn_tasks import DrawnTasks
from agentrl.rollout.tasks import TaskList, Tasks
from agentrl.rollout.worker_channel import is_json
from agentrl.rollout.workflow import Workflow


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
    known = tasks.tasks if isinstance(tasks, TaskList | DrawnTasks) else []
    for kind, sequence in (("task", known), ("held-out task", held_out)):
        for index, task in enumerate(sequence):
            if not is_json(task):
                raise TaskFileError(unsendable(f"{kind} {index}", task))


def unsendable(name: str, task: Task) -> str:
    """Say why a task cannot be sent to a worker process."""
    key = next((key for key, value in task.items() if not is_json({key: value})), None)
    value = type(task[key]).__name__ if key is not None else "value"
    return (
        f"{name} cannot be sent to a worker process: its field {key!r} ({value}) is not plain JSON; write it as JSON values, or "
        "set `rollout.workers` = 0"
    )
