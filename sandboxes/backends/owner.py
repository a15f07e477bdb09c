"""Which process a thing of the machine belongs to, so that it can be removed once that process is dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def owner() -> str:
    """Return what names this process for good: "host:boot:pid:start of pid", since its number alone may be used again."""
    return f"{socket.gethostname()}:{_boot()}:{os.getpid()}:{_started_at(os.getpid())}"


def is_dead(owner: str, *, same_boot: bool = False) -> bool:
    """Return whether the owner is known to be dead. One of another machine, which may share an engine with this one, may live.

    Args:
        owner: What `owner` returned to it.
        same_boot: Take no owner of another start of this machine for dead: another machine may have the same name.

    Raises:
        ValueError: The text is none of `owner`'s.
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
    """Return the start of a process, in clock ticks since the machine's; "" when there is no such process.

    Raises:
        OSError: It cannot be known.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
