"""What the control group of a box has used, where it has one: the kernel's own count, which misses nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

FOLDER = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Usage:
    """The files of one control group."""

    cpu: str
    cpu_unit_s: float
    memory: str
    statistics: str
    files: tuple[str, str]
    """In `statistics`: memory of files, and of those the part that is in memory alone."""

    def cpu_s(self) -> float:
        """CPU seconds of every process but this one, whoever waited for it or did not."""
        with open(self.cpu) as file:
            used = next(line.split()[-1] for line in file if line.startswith("usage_usec") or line.strip().isdigit())
        return int(used) * self.cpu_unit_s - time.process_time()

    def memory_bytes(self, folders: list[str], at_least: int) -> int:
        """Memory of every kind but cached files of the machine and those in `folders`. Exact when it is more than `at_least`."""
        with open(self.memory) as file:
            used = int(file.read())
        if used <= at_least:
            return used
        with open(self.statistics) as file:
            values = {name: int(value) for name, value in map(str.split, file)}
        cached = values[self.files[0]] - values[self.files[1]]
        rooms = map(os.statvfs, folders)
        return used - cached - sum((room.f_blocks - room.f_bfree) * room.f_frsize for room in rooms)


def usage_of_this_box() -> Usage | None:
    """That of the control group that this process is alone in; None when it shows none, or that of others besides."""
    for cpu, memory, usage in (
        (
            "cpuacct",
            "memory",
            Usage(
                f"{FOLDER}/cpuacct/cpuacct.usage",
                1e-9,
                f"{FOLDER}/memory/memory.usage_in_bytes",
                f"{FOLDER}/memory/memory.stat",
                ("cache", "shmem"),
            ),
        ),
        (
            ".",
            ".",
            Usage(f"{FOLDER}/cpu.stat", 1e-6, f"{FOLDER}/memory.current", f"{FOLDER}/memory.stat", ("file", "shmem")),
        ),
    ):
        if all(_is_ours(f"{FOLDER}/{name}/cgroup.procs") for name in (cpu, memory)):
            try:
                usage.cpu_s()
                usage.memory_bytes([], 0)
            except (OSError, ValueError, KeyError, StopIteration):
                continue
            return usage
    return None


def _is_ours(processes: str) -> bool:
    try:
        with open(processes) as file:
            found = file.read().split()
    except OSError:
        return False
    # Those that started this one outside of its namespace are shown as 0.
    return found.count(str(os.getpid())) == 1 and len(found) <= 4 and set(found) <= {"0", str(os.getpid())}
