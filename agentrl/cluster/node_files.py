"""What a run has on one node: directories that were brought there, once for all processes of the node, and scratch space.

/dev/shm/agentrl-node-RUN-NODE/DIGEST    a directory that was brought, whole or not there at all
TMPDIR/agentrl-node-RUN-NODE/...         what does not fit into shared memory; and scratch space

Each is held by a lock that is shared by all actors on the node, and that the kernel drops with the last one, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from agentrl.machine.process_limits import SHARED_MEMORY, room_in_shared_memory

PREFIX = "agentrl-node-"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NodeFiles:
    """A run's directories on this node, held until `close`."""

    def __init__(self, run: str, node: str) -> None:
        disk = Path(tempfile.gettempdir())
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else disk
        for base in {memory, disk}:
            _remove_abandoned(base)
        name = f"{PREFIX}{run}-{node[:16]}"
        self._memory, self._disk = memory / name, disk / name
        self._held = {root: _hold(root) for root in {self._memory, self._disk}}
        self.scratch = self._disk / f"scratch-{uuid.uuid4().hex}"
        self.scratch.mkdir(mode=0o700)

    def find(self, digest: str) -> Path | None:
        """Return where a directory of this digest is; None: it is not here."""
        found = [root / digest for root in self._held if (root / digest).is_dir()]
        return found[0] if found else None

    def begin(self, digest: str, size: int) -> Path:
        """Return a new directory in which one of this digest, of `size` bytes, is to be put together."""
        root = self._memory if room_in_shared_memory(2 * size) else self._disk
        partial = root / f".{digest}-{uuid.uuid4().hex}"
        partial.mkdir(mode=0o700)
        return partial

    def finish(self, partial: Path, digest: str) -> Path:
        """Give a directory that is whole its name; return where it is."""
        whole = partial.parent / digest
        try:
            partial.rename(whole)
        except OSError:  # another process of the node was faster
            shutil.rmtree(partial, ignore_errors=True)
        return whole

    def remove(self, directory: Path) -> None:
        """Delete a directory that was brought, or written in the scratch space."""
        if any(root in directory.parents for root in self._held):
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Delete the scratch space; and everything, if no other process of the node is left."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for root, descriptor in self._held.items():
            with suppress(OSError):  # others are left
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
            os.close(descriptor)
        self._held = {}


def _hold(root: Path) -> int:
    """Make a directory if need be, and hold it with others; return its descriptor."""
    while True:
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        try:
            descriptor = os.open(root, _OPEN_DIRECTORY)
        except FileNotFoundError:
            continue  # the last of those before has just deleted it
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            if root.stat().st_ino == os.fstat(descriptor).st_ino and os.fstat(descriptor).st_uid == os.geteuid():
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
        with suppress(OSError):  # held by its run, or somebody else's
            descriptor = os.open(path, _OPEN_DIRECTORY)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
