"""Directories of the main process's machine on the nodes: named by their content, once a node, through Ray's object store."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import ray

from agentrl.cluster.answers import COPY_TIMEOUT_S, answered
from agentrl.concurrency.threads import in_thread
from agentrl.errors import ClusterError, one_line

if TYPE_CHECKING:
    from agentrl.cluster.ray_host import RayHost

PIECE_BYTES = 2**25
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""What the files of a model's weights end with."""
Stored = list[tuple[str, list[Any]]]
"""A directory in the object store: the name of each file, and references of its pieces."""


@dataclass(eq=False)
class Brought:
    """What a run has brought to which node."""

    _uses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By node and path there: how often it was brought and not let go."""
    _locks: dict[tuple[str, str], anyio.Lock] = field(default_factory=dict)
    _stored: dict[str, Stored] = field(default_factory=dict)
    """In the object store at this moment, by digest."""
    _takers: Counter[str] = field(default_factory=Counter)
    """How many nodes take it from there."""
    _storing: anyio.Lock = field(default_factory=anyio.Lock)

    async def bring(self, host: RayHost, directory: Path, *, weights: bool) -> Path:
        """Have a directory on a host's node; return where it is.

        Raises:
            ClusterError: The directory cannot be read, or the node is gone or full.
        """
        what = f"{directory} cannot be brought to {host.name}"
        try:
            files = await in_thread(_files_of, directory, weights)
            digest, size = await in_thread(_digest, directory, files)
        except OSError as error:
            raise ClusterError(f"{what}: {one_line(error)}") from error
        async with self._locks.setdefault((host.node, digest), anyio.Lock()):
            found = await answered(host.actor.find.remote(digest), what)
            if found is None:
                self._takers[digest] += 1
                try:
                    stored = await self._store(directory, files, digest)
                    found = await answered(host.actor.bring.remote(digest, size, stored), what, COPY_TIMEOUT_S)
                finally:
                    self._takers[digest] -= 1
                    if not self._takers[digest]:
                        self._stored.pop(digest, None)
        self._uses[host.node, found] += 1
        return Path(found)

    def let_go(self, host: RayHost, directory: Path) -> bool:
        """Note that one use of a directory on a node has ended; whether it was the last."""
        key = (host.node, str(directory))
        self._uses[key] -= 1
        if self._uses[key] > 0:
            return False
        del self._uses[key]
        return True

    async def _store(self, directory: Path, files: list[str], digest: str) -> Stored:
        async with self._storing:
            if digest not in self._stored:
                self._stored[digest] = await in_thread(_put, directory, files)
            return self._stored[digest]


def _files_of(directory: Path, weights: bool) -> list[str]:
    """Return the names of the files in a directory, in order."""
    names = [str(path.relative_to(directory)) for path in sorted(directory.rglob("*")) if path.is_file()]
    return [name for name in names if weights or not name.endswith(WEIGHTS)]


def _digest(directory: Path, files: list[str]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for name in files:
        with (directory / name).open("rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
            size += file.tell()
        digest.update(f"{name}\0{own}\n".encode())
    return digest.hexdigest(), size


def _put(directory: Path, files: list[str]) -> Stored:
    stored = []
    for name in files:
        refs = []
        with (directory / name).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                refs.append(ray.put(piece))
        stored.append((name, refs))
    return stored
