"""Tasks from a file of JSON lines, which may be compressed."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.system.imports import import_from
from agentrl.tasks.task_type import TaskType, as_task


def load_tasks(path: Path, task_type: TaskType | None = None) -> list[Task]:
    """Return the tasks of a JSON-lines file.

    Raises:
        TaskFileError: It cannot be read, or a line, which the message names, is no task.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".zst":
            import pyarrow

            content = pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read()
        # JSON strings may hold other line separators.
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskFileError(f"the task file {path} is no whole gzip file: {one_line(error)}") from error
    except IsADirectoryError as error:
        raise TaskFileError(
            f"the task file {path} is a folder; write harbor:{path} for folders of terminal tasks, or name a file of JSON lines in it"
        ) from error
    except OSError as error:
        raise TaskFileError(f"cannot read the task file {path}: {error.strerror or one_line(error)}") from error
    except ImportError:
        raise TaskFileError(f"{path} needs the package pyarrow: pip install -e '/path/to/agentrl[data]'") from None
    except UnicodeDecodeError as error:
        raise TaskFileError(f"the task file {path} is not UTF-8: {one_line(error)}; save it as UTF-8") from error
    import_from(path.parent)  # a task may name an environment of a module beside its file
    tasks: list[Task] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line, parse_constant=_refuse_constant)
            if "\\ud" in line.lower():  # half of a surrogate pair would fail later, in the tokenizer or the store
                json.dumps(task, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            what = one_line(error)
            if isinstance(error, json.JSONDecodeError):
                what = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
            hint = "" if isinstance(error, UnicodeEncodeError) else "; each task is a line of its own"
            if path.suffix == ".py":
                hint = f"; for tasks made by Python code, write python:{path}:NAME"
            raise TaskFileError(f"{path}, line {number}: not valid JSON: {what}{hint}") from error
        tasks.append(as_task(task, f"{path}, line {number}", task_type))
    if not tasks:
        raise TaskFileError(f"{path} holds no tasks")
    return tasks


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is a number that JSON does not have; write null, or leave its key out")
