"""Tasks whose data set has other names than the workflow: `data.columns` renames columns, `data.fields` adds what every task has.

{"question": "...", "answer": "..."} ─► columns {prompt: question}, fields {scorer: number} ─► {"prompt": "...", "answer": "...", "scorer": "number"}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentrl.config import DataConfig
from agentrl.episode import Task
from agentrl.errors import TaskFileError
from agentrl.tasks.task_type import as_task
from agentrl.tasks.tasks import AnyTasks, open_tasks


def with_columns(source: AnyTasks, data: DataConfig) -> AnyTasks:
    """Return a source of tasks whose rows have the names that the configuration gives them.

    Args:
        source: As for `agentrl.tasks.tasks.list_tasks`.
        data: What says so; where it does not, the source is returned.

    Raises:
        TaskFileError: The source cannot be read, or a row of a list lacks a column. One of a stream counts as a task, with its fault.
    """
    if not data.columns and not data.fields:
        return source
    name = source if isinstance(source, str) else "tasks"
    opened = open_tasks(source)
    renamed = partial(_renamed, columns=data.columns, fields=data.fields, name=name)
    if isinstance(opened, list):
        return [renamed(index, row) for index, row in enumerate(opened)]
    # A map goes on after a row that raised, as a generator would not.
    return lambda: map(renamed, itertools.count(), opened.start())


def _renamed(index: int, row: Any, *, columns: Mapping[str, str], fields: Mapping[str, Any], name: str) -> Task:
    where = f"{name}, task {index}"
    task = as_task(row, where)
    for field, column in columns.items():
        if column not in task:
            raise TaskFileError(
                f"{where} has no column {column!r}, which `data.columns.{field}` names; it has {', '.join(sorted(task))}"
            )
    kept = {column: value for column, value in task.items() if column not in columns.values()}
    return {**fields, **kept, **{field: task[column] for field, column in columns.items()}}
