"""The Ray actor that hosts one process of a run on its node.

main process ──`give`: lines and bytes that wait, in one call──► actor ──► its child: standard input, the stream
             ◄─`events`: lines, bytes, log, the end, in batches──          its child: standard output, the stream, standard error

The child ends with the actor: its standard input closes, however the actor ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import ray

import agentrl
from agentrl.cluster.node_files import NodeFiles
from agentrl.concurrency.child_process import ChildProcess, child_process
from agentrl.concurrency.threads import in_thread
from agentrl.errors import AgentRLError, ClusterError

MAX_WAITING_BYTES = 2**22
"""So much may wait to be taken by the main process; then the child's outputs are read no further."""
CHUNK_BYTES = 2**18
LOG_POLL_S = 0.2
"""Time between two looks at the log."""

Event = tuple[str, Any]
"""("line" | "bytes" | "log", what came), or ("end", exit status)."""


class NodeProcess:
    """One process on the node of this actor, and the files of its run there."""

    def __init__(self, run: str) -> None:
        self._node = ray.get_runtime_context().get_node_id()
        self._files = NodeFiles(run, self._node)
        self._running = AsyncExitStack()
        self._child: ChildProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Condition()

    async def facts(self) -> dict[str, str]:
        """Return what the main process has to know of this machine."""
        return {
            "node": self._node,
            "address": ray.util.get_node_ip_address(),
            "python": sys.executable,
            "package": str(Path(agentrl.__file__).parent),
            "scratch": str(self._files.scratch),
            "work": os.getcwd(),
        }

    async def free_port(self, address: str) -> int:
        """Return a port of an address of this machine that nobody listens on."""
        with socket.create_server((address, 0)) as server:
            return int(server.getsockname()[1])

    async def start(self, name: str, command: Sequence[str], env: dict[str, str], stream: bool) -> None:
        """Start the process. What it says comes from `events`."""
        self._log = self._files.scratch / "log"
        # Ray's own settings of this actor are not its child's.
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        opened = child_process(name, command, log=self._log, error=ClusterError, env={**own, **env}, stream=stream)
        self._child = child = await self._running.enter_async_context(opened)
        readers = [self._read_lines(child), *([self._read_stream(child)] if stream else [])]
        ended = asyncio.Event()
        outputs = [asyncio.create_task(reader) for reader in readers]
        log = asyncio.create_task(self._read_log(ended))
        self._tasks = [*outputs, log, asyncio.create_task(self._wait(child, outputs, ended, log))]

    async def events(self) -> AsyncIterator[list[Event]]:
        """Yield what comes from the process, all that waits at once, until it has ended."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                self._changed.notify_all()
            yield batch
            if batch[-1][0] == "end":
                return

    async def give(self, lines: Sequence[str], content: bytes) -> bool:
        """Give the process lines and bytes; whether it took them."""
        assert self._child is not None
        try:
            for line in lines:
                await self._child.write_line(line)
            if content and self._child.stream is not None:
                await self._child.stream.send(content)
        except (AgentRLError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._child is not None:
            self._child.signal(number)

    async def kill(self) -> None:
        """Kill the process and all that it started."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        """End the process in good order."""
        await self._running.aclose()
        await asyncio.gather(*self._tasks[-1:], return_exceptions=True)

    async def close(self) -> None:
        """Delete what the run has here, if this is its last actor on the node."""
        for task in self._tasks:
            task.cancel()
        self._files.close()

    async def find(self, digest: str) -> str | None:
        """Return where a directory is that was brought; None: it is not here."""
        found = self._files.find(digest)
        return None if found is None else str(found)

    async def bring(self, digest: str, size: int, files: Sequence[tuple[str, Sequence[Any]]]) -> str:
        """Write a directory whose files are in the object store, as pieces; return where it is."""
        partial = self._files.begin(digest, size)
        for name, pieces in files:
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for piece in pieces:
                    content = await piece
                    await in_thread(file.write, content)
        return str(self._files.finish(partial, digest))

    async def fetch(self, directory: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the files of a directory of this node, piece by piece."""
        for path in await in_thread(lambda: sorted(Path(directory).rglob("*"))):
            if not await in_thread(path.is_file):
                continue
            name = str(path.relative_to(directory))
            yield name, b""
            with await in_thread(path.open, "rb") as file:
                while content := await in_thread(file.read, MAX_WAITING_BYTES):
                    yield name, content

    async def remove(self, directory: str) -> None:
        """Delete what was brought, or written in the scratch space."""
        await in_thread(self._files.remove, Path(directory))

    async def _put(self, kind: str, content: Any, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting_bytes < MAX_WAITING_BYTES)
            if kind == "bytes" and self._waiting and self._waiting[-1][0] == "bytes":
                self._waiting[-1] = (kind, self._waiting[-1][1] + content)
            else:
                self._waiting.append((kind, content))
            self._waiting_bytes += size
            self._changed.notify_all()

    async def _read_lines(self, child: ChildProcess) -> None:
        with suppress(AgentRLError):  # it has ended
            while True:
                line = await child.read_line(float("inf"))
                await self._put("line", line, len(line))

    async def _read_stream(self, child: ChildProcess) -> None:
        assert child.stream is not None
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                content = await child.stream.receive(CHUNK_BYTES)
                await self._put("bytes", content, len(content))

    async def _read_log(self, ended: asyncio.Event) -> None:
        with self._log.open("rb") as log:
            while True:
                last = ended.is_set()
                while content := await in_thread(log.read, CHUNK_BYTES):
                    await self._put("log", content, len(content))
                if last:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), LOG_POLL_S)

    async def _wait(
        self, child: ChildProcess, outputs: Sequence[asyncio.Task[None]], ended: asyncio.Event, log: asyncio.Task[None]
    ) -> None:
        status = await child.wait()
        ended.set()
        await asyncio.wait([*outputs, log], timeout=2)  # what it started may hold its outputs open
        await self._put("end", status, 0)
