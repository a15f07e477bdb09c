"""The text of a failure: bounded, valid UTF-8, with the line of the user's code that it comes from, and without keys.

What is shown may be hostile: its `repr` may raise or be endless. A new form of it is bounded here, and not where it is shown.
"""

from __future__ import annotations

import asyncio
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import TracebackException
from types import CoroutineType, FrameType
from typing import Any

from agentrl.errors import error_line

MAX_TEXT_CHARS = 64_000
"""Bound of a stored failure. The middle of a longer one is left out: the cause stands at one end, the place at the other."""
MAX_FRAMES = 60
"""Innermost frames of one traceback that are shown."""

_FRAME = re.compile(r'(  File "([^"\n]*)", line \d+.*\n(?:    .*\n)*)')
"""A frame of a traceback with its lines of code, and the name of its file."""
_PLACE = re.compile(r'  File "([^"\n]*)", line (\d+), in (.*)\n')
"""The line that a frame of a traceback begins with."""
_GENERATED = re.compile(r'  File "<string>", line \d+, in __(init|eq|lt|le|gt|ge|repr|hash)__\n')
"""A frame of a method that `dataclasses` has generated, which is nobody's line."""
_MARGIN = re.compile(r"^ +[|+] ?", re.MULTILINE)
"""What Python draws to the left of the members of a group."""
_MODULE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?::|$))", re.MULTILINE)
"""The module of an exception's class."""
_NO_AWAIT = "\nWhat an async function returns must be awaited first: `await` is missing before a call."
_NO_FIELD = "\nWhere the task lacks this field: [data.columns] renames what it has, [data.fields] adds a constant."
_LINK = re.compile(r"\n(?:The above exception was the|During handling of the above) .*\n\n")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def describe(error: BaseException) -> str:
    """Return the traceback of `error` with its causes and members, as text that `storable` would not change."""
    text = "".join(TracebackException.from_exception(error, limit=-MAX_FRAMES).format())
    return storable(_MODULE.sub("", _MARGIN.sub("", text) if "Exception Group Traceback" in text else text))


def storable(text: str, bound: int = MAX_TEXT_CHARS) -> str:
    """Return `text` with its middle left out beyond `bound` characters, and with lone surrogates as escapes."""
    return cut_middle(text, bound).encode("utf-8", "backslashreplace").decode()


def cut_middle(text: str, max_chars: int) -> str:
    """Return a text as it is, or if it has more than `max_chars` both its ends, with a line between them that says how much is left out."""
    if len(text) <= max_chars:
        return text
    kept = max_chars // 2
    return f"{text[:kept]}\n[{len(text) - 2 * kept:,} characters left out]\n{text[len(text) - kept :]}"


def shown(value: object, bound: int = 200) -> str:
    """Return the `repr` of a value, bounded."""
    try:
        return storable(repr(value), bound)
    except Exception as error:
        return f"<a {type(value).__qualname__} whose repr raises {type(error).__qualname__}>"


def without_secrets(text: str, instead: str = "") -> str:
    """Return a text in which URLs have lost the user and password that they name, or have `instead` for them."""
    return re.sub(r"(?<=://)[^/@\s'\"]+@", instead, text)


def users_part(failure: str) -> str:
    """Return what a user needs of a described failure: of its last exception the frames outside of libraries, and the message."""
    last = _LINK.split(failure)[-1]
    message = _FRAME.sub("", last).removeprefix("Exception Group ").removeprefix("Traceback (most recent call last):\n")
    users = [text for text, file in _FRAME.findall(last) if not is_library(file) and not _GENERATED.fullmatch(text)]
    hint = _NO_FIELD if message.startswith("KeyError: '") else _NO_AWAIT if "'coroutine' object" in message else ""
    return "".join(users) + message.strip() + hint


def failure_line(failure: str) -> str:
    """Return the line of a described failure that says what was raised last, with the innermost line of the user's code."""
    places = [f"{file}:{line} in {name}" for file, line, name in _PLACE.findall(failure) if not is_library(file)]
    return error_line(failure) + (f" (at {places[-1]})" if places else "")


def place_of(frames: Sequence[FrameType]) -> str:
    """Return the innermost of `frames` that is no library's, or else the innermost. `frames` are from outside in."""
    users = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
    for frame in reversed(users or frames):
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return "an unknown place"


def place_of_task(task: asyncio.Task[Any]) -> str:
    """Return the line at which a suspended task waits, as `place_of` chooses it."""
    awaited: Any = task.get_coro()
    frames: list[FrameType] = []
    while isinstance(awaited, CoroutineType) and awaited.cr_frame is not None:
        frames.append(awaited.cr_frame)
        awaited = awaited.cr_await
    return place_of(frames)


def place_of_function(function: object) -> str | None:
    """Return the line at which a function begins, also one within a `partial`; None for what is no function."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else None


def is_library(file: str) -> bool:
    """Return whether code in `file` is Python's, an installed package's, or agentrl's."""
    return file.startswith(("<frozen", _PACKAGE, *_LIBRARIES))


def masked(value: Any) -> Any:
    """Return a JSON value in which the credentials in addresses are ***."""
    if isinstance(value, str):
        return without_secrets(value, "***@")
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, list | tuple) else value
