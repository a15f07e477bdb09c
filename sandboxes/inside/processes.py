"""The processes of a sandbox: how they are limited, measured and ended."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from typing import Any

KILL_TIMEOUT_S = 5.0
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
PAGE = resource.getpagesize()
LARGE_ADDRESS_SPACE = 4 * 2**30
"""From here on page tables may take more than 8 MB."""
CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

libc = ctypes.CDLL(None, use_errno=True)
HARD_LIMITS = {
    kind: resource.getrlimit(kind)[1]
    for kind in (
        resource.RLIMIT_CORE,
        resource.RLIMIT_CPU,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_DATA,
        resource.RLIMIT_NOFILE,
        resource.RLIMIT_NPROC,
        resource.RLIMIT_MSGQUEUE,
        resource.RLIMIT_STACK,
    )
}
"""Of this process and those that it forks, until they set their own."""


class Filter(ctypes.Structure):
    """A compiled filter of system calls as the kernel takes it (`struct sock_fprog`)."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def make_filter(program: bytes) -> Filter | None:
    """Return the filter of a compiled BPF `program`; None for an empty one."""
    return Filter(len(program) // 8, program) if program else None


def set_limits(limits: dict[str, Any], *, own_processes: int) -> None:
    """Set this process's resource limits. `own_processes` of ours count as the user's."""
    nproc = limits["nproc"]
    cpu_s = int(limits["cpu_s"] if limits["cpu_s"] is not None else limits["timeout_s"] * 64) + 2
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_DATA, 2 * limits["memory_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, None if nproc is None else nproc + own_processes),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_STACK, 64 * 2**20),
    ):
        if value is not None:
            hard = HARD_LIMITS[kind]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))


def install_filter(filter_: Filter | None) -> None:
    """Hold this process, and all that it starts, to a filter of system calls (seccomp).

    Raises:
        OSError: The kernel refuses it.
    """
    if filter_ is None:
        return
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0):
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")


def others() -> list[int]:
    """Every other process of the sandbox. Without a namespace of our own: our descendants."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if os.getpid() == 1:
        return [pid for pid in pids if pid != 1]
    parents = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parents[pid] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= more
    return [pid for pid in ours if pid != os.getpid()]


def signal_others(number: int) -> bool:
    """Send a signal to every other process; whether there was one."""
    if os.getpid() == 1:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return False
        return True
    found = others()
    for pid in found:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return bool(found)


def kill_group(pid: int) -> None:
    """Kill the processes of a group, if there are any."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def statistics(pids: list[int]) -> dict[int, list[bytes]]:
    """Return what the kernel says of each live process, from its state on (`/proc/PID/stat`)."""
    found = {}
    for pid in pids:
        try:
            found[pid] = fields = read_statistics(f"/proc/{pid}/stat")
            if fields[0] == b"Z" and int(fields[17]) > 1:
                fields[20:22] = sizes_of_threads(pid)
        except OSError:
            continue
    return found


def read_statistics(path: str) -> list[bytes]:
    """Return the fields of a file such as /proc/1/stat that follow the name."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def sizes_of_threads(pid: int) -> list[bytes]:
    """Address space and resident pages of a process whose first thread has ended: only its other threads have any."""
    sizes = [b"0", b"0"]
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            fields = read_statistics(f"/proc/{pid}/task/{thread}/stat")
        except OSError:
            continue
        sizes = max(sizes, fields[20:22], key=lambda pair: int(pair[1]))
    return sizes


def resident_memory(found: dict[int, list[bytes]]) -> int:
    """Bytes of resident memory with page tables, of live processes together."""
    tables = sum(page_tables(pid) for pid, fields in found.items() if int(fields[20]) > LARGE_ADDRESS_SPACE)
    return tables + sum(int(fields[21]) for fields in found.values()) * PAGE


class SeenTime:
    """CPU time of processes as they were last seen: of those too that nobody waited for, whose end the kernel tells nobody."""

    def __init__(self) -> None:
        self._ended = 0
        self._live: dict[int, int] = {}

    def cpu_s(self, found: dict[int, list[bytes]]) -> float:
        """CPU seconds of all processes that were ever found, up to now."""
        live = {pid: int(fields[11]) + int(fields[12]) for pid, fields in found.items()}
        self._ended += sum(ticks for pid, ticks in self._live.items() if pid not in live)
        self._live = live
        return (self._ended + sum(live.values())) * CLOCK_TICK_S


def page_tables(pid: int) -> int:
    """Bytes of the tables that map a process's memory: up to a 512th of its address space."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # the first may have ended, and has none then
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                for line in file:
                    if line.startswith(b"VmPTE:"):
                        return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def proportional_memory(pids: list[int]) -> int:
    """Like `resident_memory`, with pages that processes share counted once: exact, and too slow for every tick."""
    memory = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                memory += sum(int(line.split()[1]) for line in file if line.startswith(b"Pss:")) * 1024
            memory += page_tables(pid)
        except OSError:
            memory += resident_memory(statistics([pid]))
    return memory


def waited_cpu(found: dict[int, list[bytes]]) -> float:
    """CPU seconds of live processes, and of all that somebody has waited for."""
    return reaped_cpu() + sum(sum(map(int, fields[11:15])) for fields in found.values()) * CLOCK_TICK_S


def reaped_cpu() -> float:
    """Return the CPU seconds of the children that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def kill_all() -> None:
    """Kill every other process and reap it.

    Raises:
        RuntimeError: One stays.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while signal_others(signal.SIGKILL):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError("a process outlived SIGKILL")
        time.sleep(0.0005)
