"""The directories that a run has on the nodes of its cluster: each is copied there once a node, through Ray's object store.

directory here ───put──► object store ──write──► /dev/shm or TMPDIR of each node that has use for it
rank 0's weights ─put──► object store ──write──► here, and at the same time on the servers' nodes, where `bring` then finds them

Nothing is hashed: a file is the same as long as its name, size, inode and time of writing are. Each node has one actor, `NodeFiles`; what
it wrote is gone when it ends or, where it is killed, when the next run begins there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.cluster.actors import CALL_TIMEOUT_S, call_actor
from agentrl.errors import ClusterError, NodeLostError, one_line
from agentrl.system.locks import SHARED_MEMORY, room_in_shared_memory, shared_memory_directory
from agentrl.system.tasks import in_thread

COPY_TIMEOUT_S = 1800.0
"""Bound of copying a directory."""
PIECE_BYTES = 2**25
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""What the files of a model's weights end with."""
Listing = tuple[tuple[str, int, int, int], ...]
"""The files of a directory: name, size, inode and time of writing of each."""


@dataclass(frozen=True)
class StoredDirectory:
    """A directory in the object store."""

    size: int
    files: list[tuple[str, list[Any]]]
    """The name of each file, and references of its pieces."""


class NodeFiles:
    """The files that a run has on this actor's node."""

    def __init__(self) -> None:
        self._held = ExitStack()
        disk = Path(tempfile.gettempdir())
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else disk
        self._disk, self._memory = (self._held.enter_context(shared_memory_directory(base=at)) for at in (disk, memory))

    def new_directory(self) -> Path:
        """Return a new directory on the disk."""
        return Path(tempfile.mkdtemp(dir=self._disk))

    def put(self, directory: Path) -> StoredDirectory:
        """Put a directory of this node into the object store."""
        return put_directory(directory, list_files(directory))

    def write(self, stored: StoredDirectory) -> Path:
        """Write a directory that is in the object store; return where it is. It is in memory where there is room."""
        root = self._memory if room_in_shared_memory(2 * stored.size) else self._disk
        directory = Path(tempfile.mkdtemp(dir=root))
        try:
            write_directory(directory, stored)
        except BaseException:
            self.remove(directory)
            raise
        return directory

    def remove(self, directory: Path) -> None:
        """Delete a directory that the run has here."""
        if {self._disk, self._memory} & set(directory.parents):
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Delete everything."""
        self._held.close()


@dataclass(eq=False)
class _Copy:
    """A directory on a node. `uses`: how often it was brought and not released."""

    uses: int = 0
    path: Path | None = None
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class ClusterFiles:
    """The files that a run has on each node."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        """By node: its `NodeFiles`."""
        self._copies: dict[tuple[str, Listing], _Copy] = {}
        self._stored: weakref.WeakValueDictionary[Listing, StoredDirectory] = weakref.WeakValueDictionary()
        """Directories of this machine, each as long as it is being copied to some node."""
        self._putting = anyio.Lock()

    async def new_directory(self, node: str) -> Path:
        """Return a new directory on a node."""
        path: Path = await self._call(node, "new_directory")
        return path

    async def bring(self, node: str, directory: Path, *, weights: bool = True) -> Path:
        """Have a directory of this machine on a node until it is released; return where it is. Without `weights`, without those of a model.

        Raises:
            ClusterError: The directory cannot be read, or the node is gone or full.
        """
        try:
            files = await in_thread(list_files, directory, weights)
        except OSError as error:
            raise ClusterError(f"{directory} cannot be brought to a node: {one_line(error)}") from error
        copy = self._copies.setdefault((node, files), _Copy())
        copy.uses += 1
        try:
            async with copy.lock:
                if copy.path is None:
                    async with self._putting:
                        if (stored := self._stored.get(files)) is None:
                            stored = self._stored[files] = await in_thread(put_directory, directory, files)
                    copy.path = await self._call(node, "write", stored, timeout_s=COPY_TIMEOUT_S)
        except BaseException:
            copy.uses -= 1
            if not copy.uses:
                self._copies.pop((node, files), None)
            raise
        return copy.path

    async def release(self, node: str, directory: Path) -> None:
        """End one use of a directory on a node, which is deleted with the last; or delete one that was written there."""
        for key, copy in self._copies.items():
            if key[0] == node and copy.path == directory:
                copy.uses -= 1
                if copy.uses:
                    return
                del self._copies[key]
                break
        await self._call(node, "remove", directory)

    async def fetch(self, node: str, there: Path, here: Path, *, readers: Iterable[str] = ()) -> None:
        """Copy a directory of a node into a new one of this machine and, at the same time, to the nodes that will have it brought next.

        Raises:
            ClusterError: There is none, or the node is gone.
        """
        for key, unused in [item for item in self._copies.items() if readers and not item[1].uses]:
            del self._copies[key]
            with suppress(ClusterError):
                await self._call(key[0], "remove", unused.path)
        stored = await self._call(node, "put", there, timeout_s=COPY_TIMEOUT_S)
        calls = {reader: self._actor(reader).write.remote(stored) for reader in readers}
        try:
            await in_thread(write_directory, here, stored)
            files = await in_thread(list_files, here)
        except (RayError, OSError) as error:
            raise ClusterError(f"{there} cannot be fetched from node {node[:8]}: {one_line(error)}") from error
        for reader, call in calls.items():
            with suppress(ClusterError):  # who brings it there says so
                path = await call_actor(call, f"{there} cannot be brought to node {reader[:8]}", COPY_TIMEOUT_S)
                self._copies.setdefault((reader, files), _Copy(path=path))

    async def close(self) -> None:
        """Delete everything on all nodes."""
        for node in list(self._actors):
            with suppress(ClusterError):
                await self._call(node, "close")

    def _actor(self, node: str) -> Any:
        if node not in self._actors:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_concurrency": 16, "scheduling_strategy": there}
            self._actors[node] = ray.remote(NodeFiles).options(**options).remote()
        return self._actors[node]

    async def _call(self, node: str, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        call = getattr(self._actor(node), method).remote(*arguments)
        try:
            return await call_actor(call, f"files of node {node[:8]}: {method}", timeout_s)
        except NodeLostError:
            self._actors.pop(node, None)
            self._copies = {key: copy for key, copy in self._copies.items() if key[0] != node}
            raise


def list_files(directory: Path, weights: bool = True) -> Listing:
    """Return the files in a directory, in the order of their names. Without `weights`, without those of a model."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and (weights or not path.name.endswith(WEIGHTS)):
            state = path.stat()
            found.append((str(path.relative_to(directory)), state.st_size, state.st_ino, state.st_mtime_ns))
    return tuple(found)


def put_directory(directory: Path, files: Listing) -> StoredDirectory:
    """Put files of a directory into the object store, in pieces."""
    stored = []
    for name, *_ in files:
        with (directory / name).open("rb") as file:
            stored.append((name, [ray.put(piece) for piece in iter(lambda: file.read(PIECE_BYTES), b"")]))
    return StoredDirectory(sum(size for _, size, *_ in files), stored)


def write_directory(directory: Path, stored: StoredDirectory) -> None:
    """Write a directory that is in the object store."""
    for name, pieces in stored.files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for piece in pieces:
                file.write(ray.get(piece, timeout=COPY_TIMEOUT_S))
