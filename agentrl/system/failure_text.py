"""The text of a failure: bounded, valid UTF-8, with the line of the user's code that it comes from, and without keys.

What is shown may be hostile: its `repr` may raise or be endless. A new form of it is bounded here, and not where it is shown.
"""

from __future__ import annotations

import asyncio
import dis
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
_MARGIN = re.compile(r"^ +[|+] ?", re.MULTILINE)
"""What Python draws to the left of the members of a group."""
_MODULE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?::|$))", re.MULTILINE)
"""The module of an exception's class."""
_HINT = "Hint: "
"""Begins the note of an error that says what is likely amiss."""
_LINK = re.compile(r"\n(?:The above exception was the|During handling of the above) .*\n\n")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_BESIDE = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("envs", "sandboxes", "trainer"))
"""Parts of the package that lie beside it in a working tree."""
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
    return "".join(text for text, file in _FRAME.findall(last) if not is_library(file)) + message.strip()


def failure_line(failure: str) -> str:
    """Return the line of a described failure that says what was raised last, with the innermost line of the user's code where it names none, and the hint."""
    places = [f"{file}:{line} in {name}" for file, line, name in _PLACE.findall(failure) if not is_library(file)]
    hint = "".join(f". {line}" for line in failure.splitlines()[-1:] if line.startswith(_HINT))
    return (said := error_line(failure)) + (f" (at {places[-1]})" if places and " (at " not in said else "") + hint


def add_hint(error: BaseException, task: object) -> None:
    """Add a note to an error of a workflow that says what is likely amiss, where that is known."""
    said = str(error)
    if isinstance(error, KeyError) and isinstance(task, dict) and error.args[0] not in task:
        fields = ", ".join(map(repr, task))
        error.add_note(f"{_HINT}The task's fields are {fields}: [data.columns] renames them, [data.fields] adds one")
    elif "'coroutine' object" in said:
        error.add_note(f"{_HINT}What an async function returns must be awaited: `await` is missing before a call")
    elif "'await' expression" in said or "can't be awaited" in said:
        error.add_note(f"{_HINT}`await` is too much before a call that is not async")


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


def place_of_returns(function: object) -> str | None:
    """Return the lines at which a function returns, also one within a `partial`; None for what is no function."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if code is None:
        return None
    returns = [one.positions for one in dis.get_instructions(code) if one.opname in ("RETURN_VALUE", "RETURN_CONST")]
    lines = " or ".join(map(str, sorted({place.lineno for place in returns if place and place.lineno})))
    return f"{code.co_filename}:{lines} in {code.co_name}"


def is_library(file: str) -> bool:
    """Return whether code in `file` is Python's, generated by it, an installed package's, or agentrl's."""
    return file == "<string>" or file.startswith(("<frozen", _PACKAGE, *_BESIDE, *_LIBRARIES))


def masked(value: Any) -> Any:
    """Return a JSON value in which the credentials in addresses are ***."""
    if isinstance(value, str):
        return without_secrets(value, "***@")
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, list | tuple) else value
