"""Tasks from a file of JSON lines, which may be compressed with gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from agentrl.errors import TaskFileError, one_line
from agentrl.proxy.http_messages import read_json
from agentrl.system.imports import import_from

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json_lines(path: Path) -> dict[str, Any]:
    """Return the values of a JSON-lines file, each by the file and the line, as messages name it.

    Raises:
        TaskFileError: It cannot be read, or a line, which the message names, is no JSON.
    """
    if path.is_dir():
        raise TaskFileError(
            f"{path} is a folder; use harbor:{path} for folders of Harbor's tasks, hf:{path} for a data set"
        )
    if path.suffix == ".py":
        raise TaskFileError(f"{path} is Python code; use python:{path}:NAME for tasks that it makes")
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise TaskFileError(f"cannot read the task file {path}: {getattr(error, 'strerror', None) or error}") from error
    import_from(path.parent)  # a task may name an environment of a module beside its file
    values: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not text:
            continue
        try:
            values[f"{path}, line {number}"] = read_json(text)
        except ValueError as error:
            why = one_line(error).replace("line 1 column", "character")
            hint = "JSON has no NaN, so write null" if b"NaN" in text else "each task is a line of its own"
            raise TaskFileError(f"{path}, line {number}: not valid JSON: {why}; {hint}") from error
    return values
