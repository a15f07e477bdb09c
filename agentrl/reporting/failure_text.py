"""Describe a failure in text that can be stored: valid UTF-8 and bounded, whatever message a user's exception has."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from agentrl.errors import error_line
from agentrl.reporting.code_place import is_library
from agentrl.reporting.middle_cut import cut_middle

MAX_TEXT_CHARS = 64_000
"""Bound of a stored failure. The middle of a longer one is left out: the cause stands at one end, the place at the other."""
MAX_MESSAGE_CHARS = 16_000
"""Bound of the message of one exception."""
MAX_FRAMES = 60
"""Innermost frames of one traceback that are shown."""
MAX_EXCEPTIONS = 16
"""Exceptions of one failure that are shown: causes, contexts and members of groups together."""

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
    return storable("".join(_describe(error, set(), [MAX_EXCEPTIONS])))


def storable(text: str, bound: int = MAX_TEXT_CHARS) -> str:
    """Return `text` with its middle left out beyond `bound` characters, and with lone surrogates as escapes."""
    return cut_middle(text, bound).encode("utf-8", "backslashreplace").decode()


def shown(value: object, bound: int = 200) -> str:
    """Return the `repr` of a value, bounded."""
    try:
        return storable(repr(value), bound)
    except Exception as error:
        return f"<a {type(value).__qualname__} whose repr raises {type(error).__qualname__}>"


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
    yield from traceback.format_tb(error.__traceback__, limit=-MAX_FRAMES)
    kind, message = type(error).__qualname__, _message(error)
    yield f"{kind}: {message}\n" if message else f"{kind}\n"
    for note in getattr(error, "__notes__", ()):
        yield storable(str(note), MAX_MESSAGE_CHARS) + "\n"
    if isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, 1):
            if left[0] <= 0:
                yield f"({len(error.exceptions) - number + 1} more of {len(error.exceptions)} are left out)\n"
                return
            yield f"--- {number} of {len(error.exceptions)}\n"
            yield from _describe(member, seen, left)


def _message(error: BaseException) -> str:
    try:
        return storable(str(error), MAX_MESSAGE_CHARS)
    except Exception as failure:
        return f"<an exception whose str raises {type(failure).__qualname__}>"
