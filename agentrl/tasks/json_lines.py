"""Tasks from a file of JSON lines, which may be compressed with gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.proxy.json_text import read_json
from agentrl.system.imports import import_from
from agentrl.tasks.task_type import TaskType, as_task

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def load_tasks(path: Path, task_type: TaskType | None = None) -> list[Task]:
    """Return the tasks of a JSON-lines file.

    Raises:
        TaskFileError: It cannot be read, or a line, which the message names, is no task.
    """
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise TaskFileError(f"cannot read the task file {path}: {getattr(error, 'strerror', None) or error}") from error
    import_from(path.parent)  # a task may name an environment of a module beside its file
    tasks: list[Task] = []
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not text:
            continue
        try:
            task = read_json(text)
        except ValueError as error:
            why = one_line(error).replace("line 1 column", "character")
            hint = "JSON has no NaN, so write null" if b"NaN" in text else "each task is a line of its own"
            if path.suffix == ".py":
                hint = f"for tasks made by Python code, write python:{path}:NAME"
            raise TaskFileError(f"{path}, line {number}: not valid JSON: {why}; {hint}") from error
        tasks.append(as_task(task, f"{path}, line {number}", task_type))
    if not tasks:
        raise TaskFileError(f"{path} holds no tasks")
    return tasks
