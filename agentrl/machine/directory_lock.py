"""A lock that one process has of a directory: the kernel lets go of it when the last process that holds its descriptor has ended.

With when it started, the id of a process tells it from every other: ids are given out again, pairs are not.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentrl.machine.privacy import private

LOCK_NAME = "lock"
"""The file in the directory whose descriptor holds it."""
_STARTED = 19
"""Index of `starttime`, the 22nd field of /proc/PID/stat, among those after the name, which may hold spaces and parentheses."""


def open_lock(directory: Path) -> int:
    """Return a descriptor of the directory's lock, which nobody holds by that. Raises OSError where there can be none."""
    return private(str(directory / LOCK_NAME), os.O_RDWR | os.O_CREAT)


def take(lock: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock, and return whether it was free. Who only asks whether it is held has it for a moment."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(lock: int) -> bool:
    """Return whether somebody else has the lock. Those who ask at the same time do not see each other."""
    if held := not take(lock, fcntl.LOCK_SH):
        return held
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def started(pid: int) -> str | None:
    """Return when a process started, in ticks since the machine did: psutil's `create_time`, without its clock that can be set.

    Args:
        pid: Its id.

    Returns:
        The ticks. None: there is no such process, or the system has no /proc that says it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].split()[_STARTED].decode()
