"""Which process a thing of the machine belongs to, so that it can be removed once that process is dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def owner() -> str:
    """Return this process, for good: its number alone may be used again."""
    return f"{socket.gethostname()}:{_boot()}:{os.getpid()}:{_started_at(os.getpid())}"


def is_dead(owner: str, *, same_boot: bool = False) -> bool:
    """Return whether the owner is known to be dead: one of another machine, on a shared engine, may live.

    Two machines may have one name: of another start of the machine with this one's, `same_boot` takes none for dead.
    """
    host, boot, pid, started = owner.split(":")
    if host != socket.gethostname() or (same_boot and boot != _boot()):
        return False
    try:
        return boot != _boot() or _started_at(int(pid)) != started
    except OSError:  # this process has no descriptor left to look with
        return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started_at(pid: int) -> str:
    """Start of a process in clock ticks since the machine's; "" when there is none. Raises OSError when that cannot be known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
