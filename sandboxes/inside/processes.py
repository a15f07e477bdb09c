"""The processes of a sandbox: how they are limited, reaped and killed."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from math import ceil
from typing import Any

KILL_TIMEOUT_S = 5.0
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
MB = 2**20
OWN_MB = 16
"""Of the interpreter that a program is forked from."""
ROOM_BYTES = 2**30
"""Of address space beyond the memory limit, where no control group counts: for libraries, and for what is reserved and never used."""

libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    """A compiled filter of system calls as the kernel takes it (`struct sock_fprog`)."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(program: bytes) -> None:
    """Hold this process, and all that it starts, to a filter of system calls (seccomp): a compiled BPF `program`.

    Raises:
        OSError: The kernel refuses it.
    """
    filter_ = Filter(len(program) // 8, program)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0):
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")


def lock_down(uid: int | None) -> None:
    """Become the user `uid`, without any right of root's, and shut this process to the programs that it starts as the same user.

    Args:
        uid: Where this process is root's; None leaves its user as it is.
    """
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # the kernel takes every capability with it
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_limits(limits: dict[str, Any], *, counted: bool) -> None:
    """Set this process's resource limits. Where no control group has `counted` it, they bound its stack and shared memory too."""
    cpu_s, nproc, memory = limits["cpu_s"], limits["nproc"], (limits["memory_mb"] + OWN_MB) * MB
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, None if cpu_s is None else ceil(cpu_s)),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * MB),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, None if counted else memory + ROOM_BYTES),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, None if nproc is None else nproc + 1),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        if value is not None:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # A signal that may be ignored comes first for CPU time, and tells by what limit the program was ended.
            resource.setrlimit(kind, (bound, bound + (kind == resource.RLIMIT_CPU and bound != hard)))


def count_memory_kills() -> int:
    """Return how often the kernel has killed for memory in this sandbox's control group; always 0 where that cannot be read."""
    for name in ("memory.events", "memory/memory.oom_control"):  # of version 2, and of 1, which Docker may have
        try:
            with open(f"/sys/fs/cgroup/{name}", "rb") as file:
                return sum(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
        except OSError:
            continue
    return 0


def reap() -> Iterator[tuple[int, int, resource.struct_rusage]]:
    """Yield the id, status and usage of each child that has ended."""
    try:
        while (found := os.wait4(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        pass


def kill_others() -> bool:
    """Kill every other process of the sandbox; return whether there was one. Without namespaces: the children of this process."""
    if os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = [int(word) for word in file.read().split()]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return bool(children)


def kill_all() -> float:
    """Kill every other process and reap it; return the CPU seconds that they had used.

    Raises:
        RuntimeError: One stays.
    """
    cpu_s, deadline = 0.0, time.monotonic() + KILL_TIMEOUT_S
    while kill_others():  # the children of those that it kills become this process's own
        cpu_s += sum(usage.ru_utime + usage.ru_stime for _, _, usage in reap())
        if time.monotonic() > deadline:
            raise RuntimeError("a process outlived SIGKILL")
        time.sleep(0.0005)
    return cpu_s


def kill_group(pid: int) -> None:
    """Kill the processes of a group, if there are any."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
