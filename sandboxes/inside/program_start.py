"""How a forked child of the first process becomes a program: its streams, its limits, what it may not do."""

from __future__ import annotations

import os
import signal
from typing import Any

from agentrl.sandboxes.inside.processes import PR_SET_DUMPABLE, libc, set_limits


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
