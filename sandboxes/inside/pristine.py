"""The pristine process of a sandbox: it never reads a request, and forks a new first process for each user.

    pristine process ── forks ──► first process of user 1 (first_process) ── reset: it ends, and its namespaces with it
                     └─ forks ──► first process of user 2 ...

What a user leaves behind, whatever it is, is in the namespaces, the mounts and the memory that end with its first process. The
pristine process is outside of them: no user can name it, let alone change it. It shares its standard streams with the
first process, and leaves them alone.

It runs with any Python from 3.10 on, so that every image with a Python can be a sandbox.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from agentrl.sandboxes.inside.first_process import RESET, serve
from agentrl.sandboxes.inside.namespaces import new_process_ids, process_ids_of_this_process, settle
from agentrl.sandboxes.inside.processes import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, libc, make_filter
from agentrl.sandboxes.inside.python_program import run_program
from agentrl.sandboxes.inside.usage import OutOfMemoryKills, usage_of_this_sandbox

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.modules import Library

AF_UNIX, SOCK_STREAM = 1, 1


def main(library: Library) -> None:
    """Fork first processes until one ends otherwise than for a reset."""
    config = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # All that is the same for every user and program is made here, once.
    config |= {
        "pristine_uid": os.getuid(),
        "filter": make_filter(base64.b64decode(config["filter"])),
        "signals": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "usage": usage_of_this_sandbox(),
        "kills": OutOfMemoryKills(),
    }
    process_ids = process_ids_of_this_process() if config["namespaces"] is not None else None
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    compile("def f(x): return [x for x in x]", "", "exec")  # the compiler's own preparations take 2 ms, once
    gc.collect()
    gc.freeze()  # its memory stays shared with that of its children
    while True:
        if fork_first_process(config["namespaces"], process_ids):
            program = serve(config)
            if program is not None:
                run_program(program, library)
            return
        config["greeting_ms"] = None
        code = code_of_the_last_child()
        free_what_is_in_flight()
        if code != RESET:
            sys.exit(code)


def fork_first_process(namespaces: dict[str, Any] | None, process_ids: int | None) -> bool:
    """Fork the first process of the next user; whether this is it."""
    try:
        if process_ids is not None:
            new_process_ids(process_ids)
        if os.fork():
            return False
        if namespaces is not None:
            settle(namespaces)
    except OSError as error:
        os.write(2, f"cannot make a new place for a user: {error}\n".encode())
        os._exit(1)
    return True


def free_what_is_in_flight() -> None:
    """Have the kernel free descriptors, and the memory of their files, that a user sent over sockets which nobody can read any more.

    It looks for them when a unix socket is closed.
    """
    fd = libc.socket(AF_UNIX, SOCK_STREAM, 0)
    if fd >= 0:
        os.close(fd)


def code_of_the_last_child() -> int:
    """Wait for all children; the exit code of the one that ended last with another than 0."""
    code = 0
    while True:
        try:
            _, status = os.wait()
        except ChildProcessError:
            return code
        code = abs(os.waitstatus_to_exitcode(status)) or code
