"""Directories in shared memory, for weights on their way to the servers; or elsewhere, for what does not fit there.

A directory is held by a lock on itself, which the kernel drops when its process ends, however it ends. So whoever makes one
can tell which of the others nobody holds any more, and removes them. Its name cannot be guessed, and only its owner can enter.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentrl.machine.privacy import open_private
from agentrl.machine.process_limits import SHARED_MEMORY

PREFIX = "agentrl-weights-"
OWNER = "owner"
"""The file that says whose a directory is, for people."""
UNNAMED_FOR_S = 60
"""A directory that has no name of its own for so long will get none: who made it has ended."""
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def shared_memory_directory(owner: str = "", base: Path | None = None) -> Iterator[Path]:
    """Yield a new directory in shared memory, for the length of the context.

    Args:
        owner: what it is for; written into its file `owner`.
        base: Where it is made, if not in shared memory.

    Raises:
        OSError: There is no shared memory, or it is full.
    """
    base = base or SHARED_MEMORY
    remove_abandoned(base)
    name = f"{PREFIX}{secrets.token_hex(16)}"
    # It gets its name only when it is held: until then nobody takes it for abandoned.
    unnamed, directory = base / f".{name}", base / name
    held: int | None = None
    try:
        unnamed.mkdir(mode=0o700)
        held = os.open(unnamed, _OPEN_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(directory)
        if owner:
            with open_private(directory / OWNER, "x") as file:
                file.write(owner)
        yield directory
    finally:
        for left in (unnamed, directory):
            shutil.rmtree(left, ignore_errors=True)
        if held is not None:
            os.close(held)


def remove_abandoned(base: Path | None = None) -> None:
    """Remove what runs of this user left there that have ended without removing it."""
    base = base or SHARED_MEMORY
    for path in [*base.glob(f"{PREFIX}*"), *base.glob(f".{PREFIX}*")]:
        with suppress(OSError):  # held by its run, or somebody else's, or no directory
            descriptor = os.open(path, _OPEN_DIRECTORY)
            try:
                of = os.fstat(descriptor)
                young = path.name.startswith(".") and time.time() - of.st_mtime < UNNAMED_FOR_S
                if of.st_uid == os.geteuid() and not young:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
