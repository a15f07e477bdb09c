"""A lock that one process has of a directory: the kernel lets go of it when the last process that holds its descriptor has ended."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentrl.machine.privacy import private

LOCK_NAME = "lock"
"""The file in the directory whose descriptor holds it."""


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
