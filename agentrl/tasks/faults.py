"""The folders or rows of a source that can be no tasks: a run is told of all of them at once, `agentrl vet` of each in its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from agentrl.episode import Task
from agentrl.errors import TaskFileError

T = TypeVar("T")
SHOWN_FAULTS = 5
UNUSABLE = "unusable"
"""The field of a task that stands for something which can be none: why."""


def usable_tasks(
    source: str,
    what: str,
    parts: Sequence[T],
    read: Callable[[T], Task],
    on_fault: Callable[[T, TaskFileError], Task] | None,
) -> Iterator[Task]:
    """Yield the task of each part of a source.

    Args:
        source: Its name, as `agentrl vet` takes it.
        what: What its parts are, such as "rows".
        parts: The parts.
        read: Returns the task of a part, or raises TaskFileError, which says where.
        on_fault: Returns a task in place of a part that can be none. None: all such parts are one error.

    Raises:
        TaskFileError: Some parts cannot be used.
    """
    faults = []
    for part in parts:
        try:
            yield read(part)
        except TaskFileError as error:
            if on_fault is not None:
                yield on_fault(part, error)
            else:
                faults.append(str(error))
    if not faults:
        return
    if len(parts) == 1:
        raise TaskFileError(faults[0])
    first = f". The first {SHOWN_FAULTS}" if len(faults) > SHOWN_FAULTS else ""
    shown = "\n".join(faults[:SHOWN_FAULTS])
    raise TaskFileError(
        f"{source}: {len(faults)} of {len(parts)} {what} cannot be used: mend them, take them out, or use those that "
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
