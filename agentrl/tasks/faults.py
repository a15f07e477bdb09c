"""The folders or rows of a source that can be no tasks: a run is told of all of them at once, `agentrl vet` of each in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.episode import Task
from agentrl.errors import TaskFileError

SHOWN_FAULTS = 5
UNUSABLE = "unusable"
"""The field of a task that stands for something which can be none: why."""


def check_usable(source: str, what: str, tasks: Sequence[Task]) -> Sequence[Task]:
    """Return the tasks of a source, all of which can be used.

    Args:
        source: Its name, as `agentrl vet` takes it.
        what: What its parts are, such as "rows".
        tasks: The task of each part.

    Raises:
        TaskFileError: Some stand for parts that can be none.
    """
    faults = [fault for task in tasks if (fault := why_unusable(task)) is not None]
    if not faults:
        return tasks
    if len(tasks) == 1:
        raise TaskFileError(faults[0])
    first = f". The first {SHOWN_FAULTS}" if len(faults) > SHOWN_FAULTS else ""
    shown = "\n".join(faults[:SHOWN_FAULTS])
    raise TaskFileError(
        f"{source}: {len(faults)} of {len(tasks)} {what} cannot be used: mend them, take them out, or use those that "
        f"`agentrl vet {source} --output tasks.jsonl` keeps{first}:\n{shown}"
    )


def unusable_task(name: str, error: TaskFileError, **fields: Any) -> Task:
    """Return a task that stands for what cannot be used, for `agentrl vet`, which reports why.

    Args:
        name: What the report calls it.
        error: Why.
        fields: Those of other tasks of its kind, which `data.columns` may rename.
    """
    return {"name": name, **fields, UNUSABLE: str(error)}


def why_unusable(task: Mapping[str, Any]) -> str | None:
    """Return why what a task stands for cannot be used; None: it is a task."""
    fault = task.get(UNUSABLE)
    return fault if isinstance(fault, str) else None
