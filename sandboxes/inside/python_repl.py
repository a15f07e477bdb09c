"""The interpreter of a Python session: a function that `program_calls.py` calls with one piece of code after another, in one namespace.

A file without a name takes what the code prints, and what the programs print that it starts.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import tempfile
import traceback
from types import FrameType, ModuleType
from typing import Any


class TimedOut(BaseException):
    """The code has run for as long as it may. Not an Exception, so that no `except Exception` takes it for one."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """End the code that runs by an exception.

    Raises:
        TimedOut: Always.
    """
    raise TimedOut


def run(code: str, space: dict[str, Any]) -> None:
    """Execute code; show the value of a last expression, as the interactive interpreter does."""
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec", dont_inherit=True), space)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<code>", "eval", dont_inherit=True), space)
        if value is not None:
            print(repr(value))


def shorten(text: str, max_characters: int) -> str:
    """Leave out the middle of a text that is too long."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


output = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_APPEND)
os.dup2(output, 1)
os.dup2(output, 2)
signal.signal(signal.SIGALRM, interrupt)
main = sys.modules["__main__"] = ModuleType(
    "__main__"
)  # where pickle, and so multiprocessing, looks for what the code defines


def execute(code: str, timeout_s: float, max_characters: int) -> tuple[str, bool, bool]:
    """Run code; return what it printed, whether it has raised, and whether its time was over."""
    raised = timed_out = False
    traced = ""
    os.ftruncate(output, 0)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, timeout_s)
            run(code, vars(main))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimedOut:
        raised = timed_out = True
    except BaseException as error:
        raised = True
        frames = list(traceback.extract_tb(error.__traceback__))
        frames = frames[next((i for i, frame in enumerate(frames) if frame.filename == "<code>"), len(frames)) :]
        head = "Traceback (most recent call last):\n" if frames else ""
        traced = head + "".join(traceback.format_list(frames) + traceback.format_exception_only(error))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the file is full, or the stream was closed: what it holds still is dropped
        sys.stdout = open(1, "w", closefd=False, encoding="utf-8")
    printed = os.pread(output, os.fstat(output).st_size, 0).decode(errors="replace")
    traced = traced.encode(
        errors="backslashreplace"
    ).decode()  # halves of surrogate pairs too, as standard error has them
    return shorten(printed + traced, max_characters), raised, timed_out
