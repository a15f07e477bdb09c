"""Describe a failure in text that can be stored: valid UTF-8, bounded, and made without trusting the exception.

An exception is the user's: its `__str__` may raise, its message may be 100 MB long or hold half a character, and its
causes may form a ring or a chain without end. Python's `traceback` module formats all of that before anybody can cut it.
"""

from __future__ import annotations

import linecache
import os
import re
import stat
import traceback
from collections.abc import Iterator
from contextlib import suppress

from agentrl.errors import error_line
from agentrl.reporting.code_place import is_library
from agentrl.reporting.middle_cut import cut_middle

MAX_TEXT_CHARS = 64_000
"""Bound of a stored failure. The middle of a longer one is left out: the cause stands at one end, the place at the other."""
MAX_MESSAGE_CHARS = 16_000
"""Bound of the message of one exception."""
MAX_NAME_CHARS = 200
"""Bound of the name of a class."""
MAX_FRAMES = 60
"""Innermost frames of one traceback that are shown."""
MAX_EXCEPTIONS = 16
"""Exceptions of one failure that are shown: causes, contexts and members of groups together."""
MAX_NOTES = 8
"""Notes of one exception (PEP 678) that are shown."""

_FRAME = re.compile(r'(  File "([^"\n]*)", line \d+.*\n(?:    .*\n)*)')
"""A frame of a traceback with its lines of code, and the name of its file."""
_PLACE = re.compile(r'  File "([^"\n]*)", line (\d+), in (.*)\n')
"""The line that a frame of a traceback begins with."""
_GENERATED = re.compile(r'  File "<string>", line \d+, in __(init|eq|lt|le|gt|ge|repr|hash)__\n')
"""A frame of a method that `dataclasses` has generated, which is nobody's line."""
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def describe(error: BaseException) -> str:
    """Return the traceback of `error` with its causes and members, as text that `storable` would not change."""
    try:
        return storable("".join(_describe(error, set(), [MAX_EXCEPTIONS])))
    except BaseException as failure:
        return f"Traceback that cannot be shown: {kind_of(failure)} while describing {kind_of(error)}"


def storable(text: str, bound: int = MAX_TEXT_CHARS) -> str:
    """Return `text` with its middle left out beyond `bound` characters, and with lone surrogates as escapes."""
    return cut_middle(text, bound).encode("utf-8", "backslashreplace").decode()


def shown(value: object, bound: int = 200) -> str:
    """Return the `repr` of a value that may have none, bounded."""
    try:
        return storable(repr(value), bound)
    except BaseException as error:
        return f"<a {kind_of(value)} whose repr raises {kind_of(error)}>"


def kind_of(value: object) -> str:
    """Return the name of a value's class, also of a class whose own class says something else when it is asked."""
    name: str = type.__dict__["__qualname__"].__get__(type(value))
    return storable(name, MAX_NAME_CHARS)


def users_part(failure: str) -> str:
    """Return what a user needs of a described failure: of its last exception the frames outside of libraries, and the message."""
    last = re.split(f"{re.escape(_CAUSE)}|{re.escape(_CONTEXT)}", failure)[-1]
    frames = re.findall(_FRAME, last)
    message = re.sub(_FRAME, "", last).removeprefix("Traceback (most recent call last):\n")
    own = "".join(text for text, file in frames if not is_library(file) and not _GENERATED.fullmatch(text))
    hint = ""
    if "'coroutine' object" in message:
        hint = "\nWhat an async function returns must be awaited first: `await` is missing before a call."
    return f"{own}{message.strip()}{hint}"


def failure_line(failure: str) -> str:
    """Return the line of a described failure that says what was raised last, with the innermost line of the user's code."""
    places = [f"{file}:{line} in {name}" for file, line, name in re.findall(_PLACE, failure) if not is_library(file)]
    return error_line(failure) + (f" (at {places[-1]})" if places else "")


def _describe(error: BaseException, seen: set[int], left: list[int]) -> Iterator[str]:
    chain: list[tuple[BaseException, str]] = []
    newest: BaseException | None = error
    link = ""
    while newest is not None and id(newest) not in seen and left[0] > 0:
        seen.add(id(newest))
        left[0] -= 1
        chain.append((newest, link))
        cause, context = newest.__cause__, None if newest.__suppress_context__ else newest.__context__
        newest, link = (cause, _CAUSE) if cause is not None else (context, _CONTEXT)
    for one, link_to_outer in reversed(chain):
        yield from _describe_one(one, seen, left)
        yield link_to_outer


def _describe_one(error: BaseException, seen: set[int], left: list[int]) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    try:
        for file in {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}:
            _check_source(file)
        yield from traceback.format_tb(error.__traceback__, limit=-MAX_FRAMES)
    except BaseException as failure:
        yield f"  (the traceback cannot be formatted: {kind_of(failure)})\n"
    message = _message(error)
    yield f"{kind_of(error)}: {message}\n" if message else f"{kind_of(error)}\n"
    notes = getattr(error, "__notes__", None)
    for note in notes[:MAX_NOTES] if isinstance(notes, list) else ():
        if isinstance(note, str):
            yield storable(note, MAX_MESSAGE_CHARS) + "\n"
    if isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, 1):
            if left[0] <= 0:
                yield f"({len(error.exceptions) - number + 1} more of {len(error.exceptions)} are left out)\n"
                return
            yield f"--- {number} of {len(error.exceptions)}\n"
            yield from _describe(member, seen, left)


def _check_source(file: str) -> None:
    """Let Python show no lines of what is there and no plain file: reading a pipe may take for ever."""
    with suppress(OSError, ValueError):
        if not stat.S_ISREG(os.stat(file).st_mode):
            linecache.cache[file] = (0, None, [], file)


def _message(error: BaseException) -> str:
    try:
        return storable(str(error), MAX_MESSAGE_CHARS)
    except BaseException as failure:
        return f"<an exception whose str raises {kind_of(failure)}>"
