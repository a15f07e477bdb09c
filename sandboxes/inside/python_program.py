"""A Python program, run in a process that was forked from a warm interpreter, as `python3 SCRIPT` would run it."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.modules import Library


def run_program(request: dict[str, Any], library: Library) -> None:
    """Run the Python program of a request, its `script` or `code`, as `python3 SCRIPT` would, in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin = open(0, closefd=False, encoding="utf-8", newline="\n")
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = open(2, "w", 1, closefd=False, encoding="utf-8", errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    script: str | None = request.get("script")
    name = script or "<program>"
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=name, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.argv = [name, *(request.get("args") or [])]
    if script:
        folder = os.path.dirname(os.path.abspath(script))
        sys.path.insert(0, folder)
        library.forget_modules_of(folder)
    code = 0
    try:
        if script:
            with open(script, "rb") as file:
                source = file.read()
        else:
            source = request["code"].encode()
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        # As the interpreter would report it, without the frames of this file.
        trace = error.__traceback__
        shown = error.with_traceback(trace.tb_next if trace else None)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        code = 1
    leave(code)


def exit_code(error: SystemExit) -> int:
    """Return what the interpreter makes of a SystemExit."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def leave(code: int) -> None:
    """End as the interpreter does, but for tearing down its modules, which takes six times as long as the fork."""
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    # Files that are open still, such as a stdout that was replaced: what the interpreter was forked with is frozen, and not among them.
    files = [found for found in gc.get_objects() if type(found) in (io.TextIOWrapper, io.BufferedWriter)]
    for stream in (sys.stdout, sys.stderr, *files):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except (OSError, ValueError, AttributeError):
            code = code or 120
    os._exit(code)
