"""How a forked child of the first process becomes a program: its input, its limits, what it may not do."""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Any

from agentrl.sandboxes.inside.processes import PR_SET_DUMPABLE, libc, set_limits

ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def make_stdin(*, interactive: bool, data: memoryview) -> tuple[int, int | None]:
    """Return the end of a program's input that it reads, and the one that is written to; None for that where `data` is all of it."""
    if interactive:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        return read_end, write_end
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, ALL_SEALS)  # else it is memory that no limit counts
    return fd, None


def become(request: dict[str, Any], stdio: tuple[int, int, int], *, counted: bool) -> dict[str, Any]:
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
        make_first_to_kill()
        set_limits(request["limits"], counted=counted)
        os.chdir(request["cwd"])
        set_environment(request["env"])
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


def make_first_to_kill() -> None:
    """Have the kernel kill this process before any other when memory is short."""
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(fd, b"1000")
    os.close(fd)


def set_environment(wanted: dict[str, str]) -> None:
    """Make this process's environment variables `wanted`, and leave alone those that are so already."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
