"""The tasks that the user brings, by the names of their sources, and those of unknown number.

    tasks.jsonl                     one JSON object a line; tasks.jsonl.gz too
    tasks.parquet                   a row a task
    hf:openai/gsm8k:main@train      a Hugging Face dataset: name or directory, then, as needed, configuration and split
    python:my_tasks.py:make         a list, or a function that returns an iterable or is a generator; a file or a module
    harbor:terminal_tasks@codex     a folder of Harbor's task folders, or one; the agent, as needed
    swe:rows.jsonl@codex            rows in SWE-bench's form, from any of the sources above; the agent, as needed
    verifiers:gsm8k-v1?{"a": 1}     a verifiers environment, then, as needed, its settings

Which task a group gets of a stream follows from the group's number; the order of a list is in `agentrl.tasks.curriculum`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config import DataConfig
from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.system.imports import check_extra, load_object
from agentrl.tasks.harbor import split_agent, tasks_of_folder
from agentrl.tasks.json_lines import read_json_lines
from agentrl.tasks.swe_rows import tasks_of_rows
from agentrl.tasks.task_type import TaskType, as_task, check_usable
from agentrl.tasks.verifiers_tasks import tasks_of_environment

PythonTasks = Iterable[Any] | Callable[[], Iterable[Any]]
"""Tasks from Python: a sequence, a dict by the names that messages have, or a function that returns an iterable, the same one every time."""
AnyTasks = str | PythonTasks
"""A source of tasks: by its name, as the top of this file has them, or from Python."""


@dataclass(frozen=True)
class GroupTask:
    """The task of a group, and where it comes from."""

    epoch: int
    index: int
    """The index of the task in the list, or in the stream."""
    task: Task | None
    """None: it cannot be used."""
    fault: str = ""
    """Why not."""

    @property
    def digest(self) -> str:
        """A digest that tells the task from others; "" where there is none."""
        return "" if self.task is None else fingerprint([self.task])

    def usable(self) -> Task:
        """Return the task.

        Raises:
            TaskFileError: It cannot be used.
        """
        if self.task is None:
            raise TaskFileError(self.fault)
        return self.task


@dataclass
class TaskStream:
    """Tasks of unknown number, one after another. Every epoch calls `start` anew, which must begin again."""

    start: Callable[[], Iterable[Any]]
    epochs: int | None = None
    read: Callable[[Any, str], Task] = as_task
    """Makes a task of a value, with what messages call it."""
    _found: Iterator[GroupTask] = field(default_factory=lambda: iter(()))
    _next: int | None = None
    """Number of the next group of `_found`; None before the first."""

    @property
    def identity(self) -> str:
        """The same text for all streams: what one holds shows only as it comes."""
        return "a stream of tasks"

    def task_of_group(self, group_id: int) -> GroupTask | None:
        """Return the task of a group; None: the epochs are over. May block.

        Groups are best asked for in turn: going back means starting again.

        What fails in the middle of the stream, and what is no task, counts as a task, with its fault.

        Raises:
            TaskFileError: The stream cannot begin, or a whole epoch of it holds no task that can be used.
        """
        if self._next is None or group_id < self._next:
            self._found, self._next = self._visits(), 0
        for found in self._found:
            self._next += 1
            if self._next > group_id:
                return found
        return None

    def check_begins_with(self, digests: Sequence[str]) -> None:
        """Check that the stream has the tasks again that it had before. May block.

        With others, half-done groups would continue on other tasks, and later tasks would come twice, or never.

        Args:
            digests: Of the tasks that the groups 0, 1, ... were given.

        Raises:
            TaskFileError: They are others.
        """
        for group_id, digest in enumerate(digests):
            found = self.task_of_group(group_id)
            if found is None or found.digest != digest:
                raise TaskFileError(
                    f"the stream of tasks does not begin as before: task {group_id} is {'gone' if found is None else 'another'}. A run "
                    "goes on only with the same tasks in the same order: give its source a seed, or start a new run, which may take a "
                    "checkpoint of this one as its model"
                )

    def _visits(self) -> Iterator[GroupTask]:
        for epoch in itertools.count() if self.epochs is None else range(self.epochs):
            usable, fault = False, ""
            for found in self._visit(epoch):
                usable, fault = usable or found.task is not None, found.fault or fault
                yield found
            if not usable:
                raise TaskFileError(
                    f"the stream of tasks holds no task that can be used{fault and f'; the last: {fault}'}"
                )

    def _visit(self, epoch: int) -> Iterator[GroupTask]:
        # Begun by the first `next`, which may fail as later ones may.
        values = itertools.chain.from_iterable(start() for start in [self.start])
        for index in itertools.count():
            try:
                found = GroupTask(epoch, index, self.read(next(values), f"task {index}"))
            except StopIteration:
                return
            except TaskFileError as error:
                found = GroupTask(epoch, index, None, str(error))
            except Exception as error:
                fault = f"the stream of tasks failed at task {index}: {type(error).__name__}: {one_line(error)}"
                found = GroupTask(epoch, index, None, fault)
            yield found


def open_tasks(
    source: AnyTasks, task_type: TaskType | None = None, data: DataConfig | None = None, name: str = "tasks"
) -> list[Task] | TaskStream:
    """Return the tasks of a source, as the top of this file describes them, or from Python.

    Args:
        source: A path, `hf:...`, `python:...`, `harbor:...`, `swe:...` or `verifiers:...`, or dicts, dataclasses or pydantic models.
        task_type: What every task must be (`agentrl.tasks.task_type.task_type_of` a workflow); None: any dict.
        data: Names the columns and the fields of every task; None: they are as they are.
        name: What messages call tasks from Python.

    Raises:
        TaskFileError: They cannot be read, or one of a list is no task. One of a stream counts as a task, with its fault.
    """
    read = partial(as_task, task_type=task_type, data=data)
    if isinstance(source, str):
        name, source = source, rows_of(source)
        check_usable(name, source)
    if callable(source):
        start = source
        try:
            source = start()
        except Exception as error:
            raise TaskFileError(f"{name} raised {type(error).__name__}: {error}") from error
        if not hasattr(source, "__len__") and hasattr(source, "__iter__"):
            return TaskStream(start, read=read)
    if not hasattr(source, "__iter__"):
        raise TaskFileError(f"{name} is a {type(source).__name__}; give a list of tasks, or a function that makes them")
    if isinstance(source, Iterator):
        raise TaskFileError(f"{name} is an iterator, which can be read only once; give the function that makes it")
    by_name = source if isinstance(source, Mapping) else {f"{name}, task {i}": value for i, value in enumerate(source)}
    if not by_name:
        raise TaskFileError(f"{name} holds no tasks")
    return [read(value, where) for where, value in by_name.items()]


def rows_of(source: str) -> PythonTasks:
    """Return what a source holds that has a name, without a look at its values: some may stand for what cannot be used.

    Raises:
        TaskFileError: It cannot be read.
    """
    match source.split(":", 1):
        case ["hf", rest]:
            name, _, split = rest.partition("@")
            path, _, configuration = name.partition(":")
            return _dataset(path, configuration, split)
        case ["python", rest]:
            return _object(rest)
        case ["harbor", rest]:
            return tasks_of_folder(rest)
        case ["swe", rest]:
            rows, agent = split_agent(rest)
            return tasks_of_rows(list_tasks(rows), agent)
        case ["verifiers", rest]:
            return tasks_of_environment(rest)
    return _dataset(source) if source.endswith(".parquet") else read_json_lines(Path(source))


def list_tasks(
    source: AnyTasks, limit: int | None = None, task_type: TaskType | None = None, data: DataConfig | None = None
) -> list[Task]:
    """Return the first tasks of a source.

    Args:
        source: As for `open_tasks`.
        limit: How many; None: all of them, of a source that ends.
        task_type: What every task must be; None: any dict.
        data: As for `open_tasks`.

    Raises:
        TaskFileError: They cannot be read, or have no end and no limit.
    """
    tasks = open_tasks(source, task_type, data)
    if isinstance(tasks, list):
        return tasks[:limit]
    if limit is None:
        name = source if isinstance(source, str) else "tasks"
        raise TaskFileError(f"{name} may have no end; say how many tasks to use with `eval.limit` (of vet: `--limit`)")
    tasks.epochs = 1
    return [one.usable() for one in map(tasks.task_of_group, range(limit)) if one is not None]


def split_tasks(tasks: Sequence[Task], eval_share: float, seed: int) -> tuple[list[Task], list[Task]]:
    """Hold out a share of the tasks, drawn with a seed. One task at least is left on each side.

    Args:
        tasks: All of them.
        eval_share: The share to hold out, above 0 and below 1.
        seed: What decides which.

    Returns:
        The tasks to train on, and those held out.

    Raises:
        TaskFileError: There are too few.
    """
    if len(tasks) < 2:
        raise TaskFileError(
            f"`data.eval_share` = {eval_share:g} holds tasks out, and there is one task alone; give two or more, or name held-out "
            "tasks with `eval.tasks`"
        )
    count = min(max(1, round(eval_share * len(tasks))), len(tasks) - 1)
    held_out = set(random.Random(f"{seed}/split").sample(range(len(tasks)), count))  # noqa: S311
    chosen = [[task for i, task in enumerate(tasks) if (i in held_out) is held] for held in (False, True)]
    return chosen[0], chosen[1]


def fingerprint(tasks: Sequence[Task]) -> str:
    """Return what tells one task set from another.

    Raises:
        TaskFileError: A task holds what JSON cannot say.
    """
    try:
        content = json.dumps(tasks, sort_keys=True, default=lambda value: type(value).__name__)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskFileError(f"a task holds what JSON cannot say: {error}") from error
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _dataset(path: str, configuration: str = "", split: str = "") -> list[Task]:
    check_extra("data", path)
    import datasets
    import pyarrow.parquet

    try:
        if (Path(path) / "dataset_info.json").is_file() or (Path(path) / "dataset_dict.json").is_file():
            dataset = datasets.load_from_disk(path)
        elif path.endswith(".parquet"):
            dataset = datasets.Dataset(pyarrow.parquet.read_table(path))
        else:
            dataset = datasets.load_dataset(path, configuration or None)
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        raise TaskFileError(f"the dataset {path} cannot be loaded: {why}") from error
    if isinstance(dataset, datasets.DatasetDict):
        split = split or "train"
        if split not in dataset:
            raise TaskFileError(f"the dataset {path} has no split {split!r}; it has {', '.join(dataset)}")
        dataset = dataset[split]
    features = dataset.features
    return [{key: _without_nulls(value, features[key]) for key, value in row.items()} for row in dataset]


def _without_nulls(value: Any, feature: Any) -> Any:
    """Return a value of Arrow's without the null keys of its structs: each has the keys of all rows, null where a row has none."""
    if isinstance(value, dict) and isinstance(feature, dict):
        return {key: _without_nulls(item, feature[key]) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item, getattr(feature, "feature", None)) for item in value]
    return value


def _object(name: str) -> PythonTasks:
    try:
        return load_object(name)  # type: ignore[no-any-return]
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        raise TaskFileError(f"python:{name} cannot be loaded: {why}; write python:FILE_OR_MODULE:NAME") from error


def episode_seed(seed: int, group_id: int, episode_index: int) -> int:
    """Return the seed of one attempt."""
    return random.Random(f"{seed}/{group_id}/{episode_index}").getrandbits(31)  # noqa: S311


def group_seed(seed: int, group_id: int) -> int:
    """Return the seed that the attempts of a group share."""
    return random.Random(f"{seed}/{group_id}").getrandbits(31)  # noqa: S311
