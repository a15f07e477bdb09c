"""Name the line of the user's code at which a task waits or a thread runs: `FILE:LINE in NAME`."""

from __future__ import annotations

import asyncio
import os
import sysconfig
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any

MAX_AWAITS = 10_000
"""Coroutines that wait for each other, beyond which the search for the innermost stops."""

_AWAITED: dict[type, tuple[str, str]] = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
"""The types that can be suspended, each with its attributes that say where, and what it awaits."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


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
    for _ in range(MAX_AWAITS):
        # Of Python's own classes alone: what the user made awaitable may do anything when it is asked for an attribute.
        names = _AWAITED.get(type(awaited))
        if names is None or (frame := getattr(awaited, names[0])) is None:
            break
        frames.append(frame)
        awaited = getattr(awaited, names[1])
    return place_of(frames)


def place_of_function(function: object) -> str | None:
    """Return the line at which a function begins, also one within `partial`s; None for what is no function."""
    while type(function) is partial:
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def is_library(file: str) -> bool:
    """Whether code in `file` is Python's, an installed package's, or agentrl's."""
    return file.startswith(("<frozen", _PACKAGE, *_LIBRARIES))
