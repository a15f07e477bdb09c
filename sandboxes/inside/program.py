"""How a forked child of the first process becomes a program: its limits and its streams; one in Python runs as `python3 SCRIPT` would run it."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import types
from typing import TYPE_CHECKING, Any, BinaryIO

from agentrl.sandboxes.inside.processes import PR_SET_DUMPABLE, libc, set_limits

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.modules import Library


def start_program(request: dict[str, Any], stdio: tuple[int, int, int], *, counted: bool) -> dict[str, Any]:
    """In the child: lock it down, then execute the command, or return the request where it is for a Python program."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()  # in a group of its own, all that it starts can be killed at once
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        os.closerange(3, 4096)  # nothing that the first process has open is the program's to use
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # else ignored after `execvp` too
        # /proc/self is the program's own again. The first process shut its, so that no program reads the host's frames there.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the first to be killed when memory is short
        set_limits(request["limits"], counted=counted)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        argv = request.get("argv")
        if argv is None:
            return request
        os.execvp(argv[0], argv)
    except OSError as error:
        shown = request.get("argv") or [request["cwd"]]
        os.write(2, f"cannot run {shown[0]}: {error}\n".encode())
    except BaseException as error:
        os.write(2, f"cannot start: {error!r}\n".encode())
    # What a shell exits with for a command that it cannot run. No clean-up: all that this process has is a copy of the first one's.
    os._exit(127)


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


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the streams from and to the host; what other code reads is empty then, and what it prints goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers
