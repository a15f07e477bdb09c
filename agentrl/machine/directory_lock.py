"""A lock that one process has of a directory: the kernel releases it when the last process that holds its descriptor has ended."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from agentrl.errors import AgentRLError
from agentrl.machine.privacy import private

RETRY_EVERY_S = 0.05


class DirectoryInUseError(AgentRLError):
    """The directory is locked. `owner`: the process that took the lock, None where it is gone and a child of its holds on."""

    def __init__(self, owner: int | None) -> None:
        super().__init__(f"in use by {f'process {owner}' if owner else 'a process of one that has ended'}")
        self.owner = owner


def lock_directory(directory: Path, orphan_timeout_s: float = 0.0) -> int:
    """Lock a directory.

    Args:
        directory: The directory, which is there.
        orphan_timeout_s: How long to wait for the children of an owner that has ended.

    Returns:
        The descriptor that holds the lock, for children that write into the directory too.

    Raises:
        DirectoryInUseError: Another process has it.
        OSError: The directory cannot be written.
    """
    lock = private(str(directory / "lock"), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + orphan_timeout_s
    try:
        while not _take(lock, fcntl.LOCK_EX):
            # A process that only asks whether it is locked has it for a moment.
            if _locked(lock) and ((owner := _owner(lock)) or time.monotonic() >= deadline):
                raise DirectoryInUseError(owner)
            time.sleep(RETRY_EVERY_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def check_unlocked(directory: Path) -> None:
    """Check that no process has the lock of a directory.

    Args:
        directory: The directory, which need not be there.

    Raises:
        DirectoryInUseError: One has it.
    """
    try:
        lock = os.open(directory / "lock", os.O_RDONLY)
    except OSError:  # it was never locked
        return
    try:
        if _locked(lock):
            raise DirectoryInUseError(_owner(lock))
    finally:
        os.close(lock)


def _take(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locked(lock: int) -> bool:
    """Return whether another process has the lock. Two that ask at the same time do not see each other."""
    if _take(lock, fcntl.LOCK_SH):
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False
    return True


def _owner(lock: int) -> int | None:
    """Return the process that took the lock last, if it is there."""
    try:
        owner = int(os.pread(lock, 20, 0))
        os.kill(owner, 0)
    except (ValueError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    return owner
