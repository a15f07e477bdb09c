"""What the control group of a sandbox has used, where it has one: the kernel's own count, which misses nothing."""

from __future__ import annotations

import os
import time

FOLDER = "/sys/fs/cgroup"
LONGEST = 1 << 14
"""Bytes of the longest of the kernel's files that are read here."""


class Usage:
    """The files of one control group. They stay open: they are read before and after every program."""

    def __init__(self, cpu: str, cpu_unit_s: float, memory: str, statistics: str, files: tuple[bytes, bytes]) -> None:
        """`files` names, in `statistics`, the memory of files, and of those the part that is in memory alone."""
        self._cpu = os.open(cpu, os.O_RDONLY)
        self._cpu_unit_s = cpu_unit_s
        self._memory = os.open(memory, os.O_RDONLY)
        self._statistics = os.open(statistics, os.O_RDONLY)
        self._files = files

    def cpu_s(self) -> float:
        """CPU seconds of every process but this one, whoever waited for it or did not."""
        text = os.pread(self._cpu, LONGEST, 0)
        used = int(text) if text.strip().isdigit() else number_of(b"usage_usec", text)
        return used * self._cpu_unit_s - time.process_time()

    def memory_bytes(self, folders: list[str], at_least: int) -> int:
        """Memory of every kind but cached files of the machine and those in `folders`. Exact when it is more than `at_least`."""
        used = int(os.pread(self._memory, LONGEST, 0))
        if used <= at_least:
            return used
        text = os.pread(self._statistics, LONGEST, 0)
        cached = number_of(self._files[0], text) - number_of(self._files[1], text)
        rooms = map(os.statvfs, folders)
        return used - cached - sum((room.f_blocks - room.f_bfree) * room.f_frsize for room in rooms)


class OutOfMemoryKills:
    """How often the kernel has killed for memory in this sandbox's control group; always 0 where that cannot be read."""

    def __init__(self) -> None:
        self._file: int | None = None
        for path in (f"{FOLDER}/memory.events", f"{FOLDER}/memory/memory.oom_control"):
            try:
                self._file = os.open(path, os.O_RDONLY)
                self.count()
                return
            except (OSError, ValueError):
                self._file = None

    def count(self) -> int:
        """Return the kills up to now."""
        return 0 if self._file is None else number_of(b"oom_kill", os.pread(self._file, LONGEST, 0))


def number_of(name: bytes, text: bytes) -> int:
    """Return the number in the line of `text` that begins with `name`.

    Raises:
        ValueError: There is none.
    """
    start = (b"\n" + text).index(b"\n" + name + b" ") + len(name)
    return int(text[start:].split(None, 1)[0])


def usage_of_this_sandbox() -> Usage | None:
    """Return that of the control group that this process is alone in; None when it shows none, or that of others besides."""
    for cpu, memory, file_names in (("cpuacct", "memory", VERSION_1), (".", ".", VERSION_2)):
        if all(_is_ours(f"{FOLDER}/{name}/cgroup.procs") for name in (cpu, memory)):
            try:
                usage = Usage(*file_names)
                usage.cpu_s()
                usage.memory_bytes([], 0)
            except (OSError, ValueError):
                continue
            return usage
    return None


VERSION_1 = (
    f"{FOLDER}/cpuacct/cpuacct.usage",
    1e-9,
    f"{FOLDER}/memory/memory.usage_in_bytes",
    f"{FOLDER}/memory/memory.stat",
    (b"cache", b"shmem"),
)
VERSION_2 = (f"{FOLDER}/cpu.stat", 1e-6, f"{FOLDER}/memory.current", f"{FOLDER}/memory.stat", (b"file", b"shmem"))


def _is_ours(processes: str) -> bool:
    try:
        with open(processes) as file:
            found = file.read().split()
    except OSError:
        return False
    # Those that started this one outside of its namespace are shown as 0.
    return found.count(str(os.getpid())) == 1 and len(found) <= 4 and set(found) <= {"0", str(os.getpid())}
