"""Directories that one process holds: the kernel releases a lock when the last process that has its descriptor has ended, however it ends.

directory_lock                 a directory that stays: a run's
shared_memory_directory        a directory in shared memory, or elsewhere for what does not fit there, for weights on their way to the servers.
                               Whoever makes one can tell which of the others are held no more, and removes them
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from agentrl.errors import AgentRLError, one_line
from agentrl.system.files import open_private, private

RETRY_EVERY_S = 0.05
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
PREFIX = "agentrl-weights-"
OWNER = "owner"
"""The file that says whose a directory in shared memory is, for people."""
UNNAMED_FOR_S = 60
"""A directory that has no name of its own for so long will get none: who made it has ended."""
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryInUseError(AgentRLError):
    """The directory is locked. `owner`: the process that took the lock, None where it is gone and a child of its holds on."""

    def __init__(self, owner: str | None) -> None:
        super().__init__(f"in use by {owner or 'a process of one that has ended'}")


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
            # A process that only asks whether it is locked shares it, for a moment.
            if not _take(lock, fcntl.LOCK_SH) and ((owner := _owner(lock)) or time.monotonic() >= deadline):
                raise DirectoryInUseError(owner)
            fcntl.flock(lock, fcntl.LOCK_UN)
            time.sleep(RETRY_EVERY_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, _this_process().encode(errors="replace"), 0)
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
    with suppress(FileNotFoundError), open(directory / "lock", "rb") as file:
        if not _take(file.fileno(), fcntl.LOCK_SH):
            raise DirectoryInUseError(_owner(file.fileno()))


def _take(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _this_process() -> str:
    """Return "PID HOST DAY TIME COMMAND" of this process. Options may hold keys: the command ends before the first."""
    words = [Path(sys.argv[0]).name, *takewhile(lambda word: not word.startswith("-"), sys.argv[1:])]
    return f"{os.getpid()} {socket.gethostname()} {time.strftime('%Y-%m-%d %H:%M:%S')} {one_line(shlex.join(words))}"


def _owner(lock: int) -> str | None:
    """Return the process that took the lock last, as a user reads it; None where it has ended."""
    try:
        number, host, day, clock, command = os.pread(lock, 2**12, 0).decode().split(" ", 4)
        if host == socket.gethostname():
            os.kill(int(number), 0)
    except (ValueError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    return f"process {number} on {host} since {day} {clock} ({command})"


@contextmanager
def shared_memory_directory(owner: str = "", base: Path | None = None) -> Iterator[Path]:
    """Yield a new directory in shared memory, which only its owner can enter, for the length of the context.

    Args:
        owner: what it is for; written into its file `owner`.
        base: Where it is made, if not in shared memory.

    Raises:
        OSError: There is no shared memory, or it is full.
    """
    base = base or SHARED_MEMORY
    remove_abandoned(base)
    # It gets its name only when it is held: until then nobody takes it for abandoned.
    directory = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=base))
    held = os.open(directory, _OPEN_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        directory = directory.rename(directory.with_name(directory.name[1:]))
        if owner:
            with open_private(directory / OWNER, "x") as file:
                file.write(owner)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


def remove_abandoned(base: Path) -> None:
    """Remove what runs of this user left there that have ended without removing it."""
    for path in [*base.glob(f"{PREFIX}*"), *base.glob(f".{PREFIX}*")]:
        with suppress(OSError):  # held by its run, or somebody else's, or no directory
            descriptor = os.open(path, _OPEN_DIRECTORY)
            try:
                of = os.fstat(descriptor)
                young = path.name.startswith(".") and time.time() - of.st_mtime < UNNAMED_FOR_S
                if of.st_uid == os.geteuid() and not young and _take(descriptor, fcntl.LOCK_EX):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def room_in_shared_memory(needed: int) -> bool:
    """Return whether there is shared memory that takes `needed` bytes."""
    return os.access(SHARED_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed
