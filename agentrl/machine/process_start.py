"""When a process started. With its id, that tells it from every other: ids are given out again, pairs are not."""

from __future__ import annotations

from pathlib import Path

_STARTED = 19
"""Index of `starttime`, the 22nd field of /proc/PID/stat, among those after the name, which may hold spaces and parentheses."""


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
