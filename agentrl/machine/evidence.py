"""Read what a run left on the disk, so that nothing in it raises what nobody expects: it may hold anything by now."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

MAX_DEPTH = 200
"""Levels of JSON that a run's files may have. It is far below Python's limit of recursion, whatever walks a value after it."""


def regular(path: Path) -> Path:
    """Return the path of a file whose reading ends.

    Raises:
        OSError: It is a pipe, a device or a folder, or there is nothing.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path


def stored_json(content: str | bytes) -> Any:
    """Read JSON as Python writes it, with NaN and lone surrogates.

    Raises:
        ValueError: It is anything else: also bytes that are no UTF-8, more than 4,300 digits, and more than MAX_DEPTH levels.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    else:
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [inner for outer in level for inner in _inside(outer)]
            if not level:
                return value
    raise ValueError(f"it has more than {MAX_DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
