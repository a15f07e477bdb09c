"""The tasks of a run: those of one source or several, what is held out of them, and the order that the configuration names.

`data.columns` renames the columns of a data set, `data.fields` adds what every task has:

    {"question": "...", "answer": "..."} ─► columns {prompt: question}, fields {scorer: number} ─► {"prompt": "...", "answer": "...", "scorer": "number"}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.config import DataConfig, RunConfig, TaskSource
from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError
from agentrl.tasks.curriculum import DrawnTasks
from agentrl.tasks.task_type import TaskType, as_task
from agentrl.tasks.tasks import AnyTasks, PythonTasks, TaskList, Tasks, TaskStream, list_tasks, open_tasks, split_tasks


def open_run_tasks(
    config: RunConfig, given: PythonTasks | None, task_type: TaskType | None = None
) -> tuple[Tasks, list[Task]]:
    """Return where groups get their tasks, and the held-out ones.

    Args:
        config: The configuration, which names both.
        given: Tasks from Python in place of those that it names for groups.
        task_type: What every task must be; None: any dict.

    Raises:
        TaskFileError: They cannot be read, or there are too few to hold some out.
        ConfigError: A share of a stream is to be held out, or a stream is to be drawn from.
    """
    data = config.data
    held_out: list[Task] = []
    if config.eval.tasks:
        held_out = list_tasks(with_columns(config.eval.tasks, data), config.eval.limit, task_type)
    sources = data.sources or [TaskSource(tasks=config.tasks or "the tasks from Python")]
    lists: list[list[Task]] = []
    for source in sources:
        tasks = open_tasks(with_columns(source.tasks if given is None else given, data), task_type, source.tasks)
        if isinstance(tasks, TaskStream):
            return _stream(tasks, config, source, held_out), held_out
        lists.append(tasks)
    if data.eval_share and not held_out:
        parts = [split_tasks(tasks, data.eval_share, config.seed) for tasks in lists]
        lists, held_out = [kept for kept, _ in parts], [task for _, out in parts for task in out]
    held_out = held_out[: config.eval.limit]
    if not data.sources and data.order != "difficulty":
        return TaskList(lists[0], config.seed, data.order == "shuffled", data.epochs), held_out
    return DrawnTasks(lists, [source.weight for source in sources], data.order, config.seed), held_out


def _stream(tasks: TaskStream, config: RunConfig, source: TaskSource, held_out: Sequence[Task]) -> TaskStream:
    data = config.data
    needs_number = {
        "data.sources": data.sources,
        "data.order": data.order == "difficulty",
        "data.eval_share": data.eval_share and not held_out,
    }
    if named := [name for name, is_set in needs_number.items() if is_set]:
        raise ConfigError(
            f"`{named[0]}` needs tasks whose number is known, and {source.tasks} is a stream; give a list"
        )
    tasks.epochs = data.epochs
    return tasks


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
