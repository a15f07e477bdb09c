"""The class of a workflow's tasks: `async def run(episode: Episode[MyTask])` sees each task as a `MyTask`.

tasks.jsonl ─► dict, checked against MyTask when it is read ─► store, workers, groups ─► MyTask, made anew for every episode

`MyTask` is a dataclass or a pydantic model. Between the two ends a task stays the dict that JSON can say. Of `Episode[Annotated[dict[str, Any], MyTask]]`
tasks are checked in the same way, and every episode sees the dict, with all that it has besides.

A folder or row that can be no task becomes one that holds the reason: a run refuses all of them at once, `agentrl vet` reports each.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, get_args, get_origin, is_typeddict

from pydantic import BaseModel, TypeAdapter, ValidationError

from agentrl.config import DataConfig
from agentrl.episode import Episode, Task
from agentrl.errors import TaskFileError, WorkflowError, one_line

SHOWN_PROBLEMS = 3
"""Wrong fields that one message names."""
SHOWN_FAULTS = 5
UNUSABLE = "why_unusable"
"""The field of a task that stands for a folder or row which can be none, for `agentrl vet`, which reports why."""


@dataclass(frozen=True)
class TaskType:
    """A class of tasks, and what checks a dict against it."""

    name: str
    model: Any
    adapter: TypeAdapter[Any]
    stays_dict: bool = False
    """Episodes see the dict that was checked, and not a value of the class."""

    def value(self, task: Task, where: str = "the task") -> Any:
        """Return a task as a value of the class.

        Args:
            task: The dict.
            where: Names the task in messages.

        Raises:
            TaskFileError: It is none; the message names the fields.
        """
        try:
            value = self.adapter.validate_python(task)
        except ValidationError as error:
            said = problems_of(error)
            raise TaskFileError(f"{where} is no {self.name}, which run(episode) takes: {said}") from error
        return task if self.stays_dict else value


def task_type_of(workflow: Callable[..., Any]) -> TaskType | None:
    """Return the class of tasks that a workflow's first parameter names; None where it names none, and tasks are dicts.

    Raises:
        WorkflowError: What is named cannot be found, or is no class of tasks.
    """
    parameter = next(iter(inspect.signature(workflow).parameters.values()), None)
    annotation = None if parameter is None else parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, _globals_of(workflow))  # noqa: S307
        except Exception as error:
            if "Episode[" not in annotation:
                return None  # an annotation for type checkers alone
            raise WorkflowError(
                f"the task type in run(episode: {annotation}) cannot be found: {one_line(error)}; define or import it at the top of "
                "the workflow's file"
            ) from error
    if get_origin(annotation) is not Episode:
        return None
    (named,) = get_args(annotation)
    stays_dict = get_origin(named) is Annotated
    if stays_dict:
        _, named, *_ = get_args(named)
    origin = get_origin(named) or named
    if named is Any or is_typeddict(origin) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return None
    if not is_dataclass(origin) and not (isinstance(origin, type) and issubclass(origin, BaseModel)):
        raise WorkflowError(
            f"run(episode: Episode[{getattr(named, '__name__', named)}]) names no class of tasks; it may be a dataclass, a pydantic "
            "model, Annotated[dict[str, Any], MODEL], or nothing for dicts"
        )
    return TaskType(getattr(named, "__name__", str(named)), named, _adapter(named), stays_dict)


_adapter = lru_cache(maxsize=64)(TypeAdapter)


def _globals_of(workflow: Any) -> dict[str, Any]:
    """Return the names that a workflow's annotations are written with, be it a function, an object that is called, or a part of one."""
    function = inspect.unwrap(workflow.func if isinstance(workflow, partial) else workflow)
    found: dict[str, Any] = (function if inspect.isroutine(function) else type(function).__call__).__globals__
    return found


def task_of_episode(workflow: Callable[..., Any], task: Task) -> Any:
    """Return a task as its workflow takes it, and as this episode's own: what changes it changes it for no other episode.

    Raises:
        TaskFileError: It is not of the workflow's class of tasks.
    """
    task_type = task_type_of(workflow)
    own = copy.deepcopy(task)
    return own if task_type is None else task_type.value(own)


def as_task(value: Any, where: str, task_type: TaskType | None = None, data: DataConfig | None = None) -> Task:
    """Return a mapping, a dataclass's or a pydantic model's value as a task.

    Args:
        value: What a source holds.
        where: What messages call it.
        task_type: What it must be; None: any dict.
        data: Its `columns` rename those of a data set, its `fields` add what every task has:
            {"question": "...", "answer": "..."} ─► columns {prompt: question}, fields {scorer: number}
            ─► {"prompt": "...", "answer": "...", "scorer": "number"}

    Raises:
        TaskFileError: It is anything else, lacks a column, or is not of the workflow's `task_type`.
    """
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        try:
            value = TypeAdapter(type(value)).dump_python(value, mode="json", by_alias=True, round_trip=True)
        except Exception as error:
            why = f"the {type(value).__name__} has no form in JSON: {one_line(error)}"
            raise TaskFileError(f"{where}: {why}") from error
    if not isinstance(value, Mapping):
        hint = ": in a file, each task is a line of its own" if isinstance(value, list) else ""
        raise TaskFileError(f"{where}: a task must be a JSON object, not {type(value).__name__}{hint}")
    task = dict(value)
    match task:
        case {"prompt": [*messages], "reward_model": {"ground_truth": answer}}:  # verl's rows
            task = {"messages": messages, "answer": answer, **task}
    if any(not isinstance(key, str) for key in task):
        raise TaskFileError(f"{where}: the keys of a task must be text, not {[*task][:5]}")
    if data is not None:
        task = _with_columns(task, where, data)
    if task_type is not None:
        task_type.value(task, where)
    return task


def _with_columns(task: Task, where: str, data: DataConfig) -> Task:
    for field, column in data.columns.items():
        if column not in task:
            raise TaskFileError(
                f"{where} has no column {column!r}, which `data.columns.{field}` names; it has {', '.join(sorted(task))}"
            )
    kept = {column: value for column, value in task.items() if column not in data.columns.values()}
    return {**data.fields, **kept, **{field: task[column] for field, column in data.columns.items()}}


def problems_of(error: ValidationError) -> str:
    """Return the problems of a value that a user or a model wrote: each field, what is wrong with it, and what it holds."""
    problems = error.errors(include_url=False)
    more = [f"and {len(problems) - SHOWN_PROBLEMS} more"] if len(problems) > SHOWN_PROBLEMS else []
    return "; ".join([*map(_problem, problems[:SHOWN_PROBLEMS]), *more])


def _problem(problem: Any) -> str:
    field = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"the field {field!r} is missing"
        case "extra_forbidden":
            return f"there is no field {field!r}; leave it out"
    text = problem["msg"].removeprefix("Value error, ")
    text = f"{text[:1].lower()}{text[1:]}"
    given = "" if problem["type"] == "value_error" else f", not {one_line(repr(problem['input']), 80)}"
    return f"the field {field!r}: {text}{given}" if field else f"{text}{given}"


def check_usable(source: str, rows: object) -> None:
    """Check that no row of a source stands for what cannot be used.

    Args:
        source: Its name, as `agentrl vet` takes it.
        rows: What it holds; those of a folder or a data set are a list.

    Raises:
        TaskFileError: Some do.
    """
    listed = rows if isinstance(rows, list) else []
    if faults := [row[UNUSABLE] for row in listed if isinstance(row, dict) and UNUSABLE in row]:
        shown = "\n".join(faults[:SHOWN_FAULTS])
        raise TaskFileError(
            f"{source}: {len(faults)} of {len(listed)} tasks cannot be used: mend them, or use those that `agentrl vet {source} --output "
            f"tasks.jsonl` keeps. The first:\n{shown}"
        )
