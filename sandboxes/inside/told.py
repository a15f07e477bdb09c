"""What a program does beside giving an answer: it prints, warns and logs. The tests hear of it with the answer.

candidate                                    tests
print("x")                              ─►   "printed", written to sys.stdout, for capsys
warnings.warn("old", DeprecationWarning) ─►  "warned", warned again, for pytest.warns and filters
logging.getLogger("shop").info("sold")  ─►   "logged", handled again by the logger of that name, for caplog and assertLogs
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST_BYTES = 1_000_000
"""What the tests are told of what the candidate prints, in all."""
LONGEST_LOGGER_NAME = 500
"""There is a logger for each part of it."""
MOST_EVENTS = 10_000
"""Warnings and log records that the tests are told of, in all."""


class Both(io.BytesIO):
    """What is written to a descriptor, which gets it too."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def write(self, data: Any) -> int:
        """Keep what is printed, as far as it may be told."""
        os.write(self._fd, data)
        return super().write(data)


class Told:
    """What a candidate's process tells beside its answers. `encode` gives a value as it is sent, `encode_error` an exception."""

    def __init__(self, encode: Callable[[Any], Any], encode_error: Callable[[BaseException], Any]) -> None:
        self._encode = encode
        self._encode_error = encode_error
        self._printed = {"printed": io.BytesIO(), "complained": Both(sys.stderr.fileno())}
        """What is written to stdout and to stderr. The host shows the end of stderr where the candidate has failed."""
        self._may_print = MOST_BYTES
        self._events: dict[str, list[Any]] = {"warned": [], "logged": []}
        self._may_tell = MOST_EVENTS

    def listen(self, source: str) -> None:
        """Take over the streams of this process, and what else the program uses."""
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(printed, "utf-8", errors="backslashreplace", write_through=True)
            for printed in self._printed.values()
        )
        if "warn" in source:
            self._hear_warnings()
        if "logging" in source:
            self._hear_records()

    def tell(self, answer: dict[str, Any]) -> None:
        """Add to an answer what there is to tell since the last one."""
        for key, written in self._printed.items():
            if printed := written.getvalue():
                answer[key] = printed[: self._may_print].decode(errors="replace")
                self._may_print = max(self._may_print - len(printed), 0)
                written.seek(0)
                written.truncate()
        for key, events in self._events.items():
            if events:
                answer[key] = events[: self._may_tell]
                self._may_tell -= len(answer[key])
                self._events[key] = []

    def _hear_warnings(self) -> None:
        import warnings

        def hear(message: Warning, *rest: Any) -> None:
            self._events["warned"].append(self._encode_error(message))

        warnings.simplefilter("always")  # whether one is wanted is the tests' to say
        warnings.showwarning = hear  # type: ignore[assignment]

    def _hear_records(self) -> None:
        import logging

        of_all = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
        enabled, handle = logging.Logger.isEnabledFor, logging.Logger.callHandlers

        def is_enabled(logger: logging.Logger, level: int) -> bool:
            return not has_level(logger) or enabled(logger, level)

        def hear(logger: logging.Logger, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if _propagates(logger):
                shown_error = None if error is None else self._encode_error(error)
                event = [logger.name, record.levelno, record.getMessage(), has_level(logger), shown_error]
                more = {name: value for name, value in vars(record).items() if name not in of_all}
                self._events["logged"].append([*event, record.funcName, self._encoded(more)])
            if enabled(logger, record.levelno):
                handle(logger, record)

        logging.Logger.isEnabledFor = is_enabled  # type: ignore[method-assign, assignment]
        logging.Logger.callHandlers = hear  # type: ignore[method-assign, assignment]

    def _encoded(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that a record has of the program's, as they are sent. One that cannot pass is not there."""
        found = {}
        for name, value in extra.items():
            with suppress(Exception):
                found[str(name)] = self._encode(value)
        return found


def has_level(logger: Any) -> bool:
    """Return whether a level was set for a logger: for itself, one above it, or the root."""
    import logging

    one = logger
    while one is not None and not one.level:
        one = one.parent
    return one is not None and (one.parent is not None or one.level != logging.WARNING)


def _propagates(logger: Any) -> bool:
    while logger.parent is not None:
        if not logger.propagate:
            return False
        logger = logger.parent
    return True


def hear(answer: dict[str, Any], value: Callable[[Any], Any], room: int) -> int:
    """Do on the tests' side what an answer tells.

    Args:
        answer: The answer.
        value: Gives a value that was sent.
        room: How many characters may be printed.

    Returns:
        How many may still be.

    Raises:
        Whatever a filter of warnings raises, and an answer leads to that tells nonsense.
    """
    for key, stream in (("printed", sys.stdout), ("complained", sys.stderr)):
        if isinstance(printed := answer.get(key), str):
            stream.write(printed[:room])
            room = max(0, room - len(printed))
    for logged in answer.get("logged", ()):
        _log_again(*logged, value=value)
    for warned in answer.get("warned", ()):
        import warnings

        if isinstance(warning := value(warned), Warning):
            warnings.warn(warning, stacklevel=5)
    return room


def _log_again(
    name: Any,
    level: Any,
    message: Any,
    has_own_level: Any,
    error: Any,
    function: Any,
    extra: Any,
    *,
    value: Callable[[Any], Any],
) -> None:
    import logging

    logger = logging.getLogger(str(name)[:LONGEST_LOGGER_NAME])
    if logger.isEnabledFor(int(level)) if has_level(logger) else has_own_level or int(level) >= logging.WARNING:
        shown = None if error is None else value(error)
        exc_info = (type(shown), shown, None) if isinstance(shown, BaseException) else None
        of = logger.name, int(level), "solution.py", 0, str(message), (), exc_info
        more = {str(key): value(item) for key, item in dict(extra).items()}
        logger.handle(logger.makeRecord(*of, func=None if function is None else str(function), extra=more))
