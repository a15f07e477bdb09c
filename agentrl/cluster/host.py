"""A node of the cluster as a `Host`, and a process there as a `Child`: its actor starts it, TCP connections carry what it says."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import anyio
from anyio.abc import SocketAttribute, SocketStream
from ray.exceptions import RayError

from agentrl.cluster.actors import CONNECT_TIMEOUT_S, call_actor
from agentrl.cluster.files import ClusterFiles
from agentrl.errors import ClusterError, one_line
from agentrl.system.child_process import STOP_TIMEOUT_S, Child
from agentrl.system.files import open_private
from agentrl.system.host import Host, ProcessOptions
from agentrl.system.tasks import in_thread

LOST = 255
"""The exit status of a process whose actor, or node, is gone: its log says so."""
LOG_TIMEOUT_S = 2.0
"""How long what a process started may keep its standard error open after its end."""


@dataclass(kw_only=True, eq=False)
class RayHost(Host):
    """The node of an actor."""

    node: str
    """The node's id."""
    name: str
    address: str
    port: int
    token: bytes
    python: str
    package: Path
    work: Path | None
    scratch: Path | None
    actor: Any
    files: ClusterFiles
    servers: Sequence[RayHost]
    """The hosts of the engine's servers, which change while the run goes on."""

    @asynccontextmanager
    async def child_process(
        self, name: str, command: Sequence[str], **options: Unpack[ProcessOptions]
    ) -> AsyncIterator[Child]:
        """Run a command there for the length of the context. Of `env` it gets what differs from this process's environment."""
        log, error, env = options["log"], options["error"], options.get("env") or {}
        own = {key: value for key, value in env.items() if os.environ.get(key) != value}
        connections = 3 if options.get("stream") else 2
        async with AsyncExitStack() as stack:
            try:
                starting = self.actor.start.remote(list(command), own, connections)
                streams: list[SocketStream] = []
                with anyio.fail_after(CONNECT_TIMEOUT_S):
                    for number in range(connections):
                        connected = await anyio.connect_tcp(self.address, self.port)
                        streams.append(await stack.enter_async_context(connected))
                        await connected.send(self.token + bytes([number]))
                await call_actor(starting, f"the {name} cannot be started on {self.name}")
            except ClusterError as failure:
                raise error(str(failure)) from failure
            except (OSError, anyio.BrokenResourceError) as failure:
                raise error(f"the {name} cannot be started on {self.name}: {one_line(failure)}") from failure
            name = f"{name} on {self.name}"
            # No task group: who ends a server may be another task than who started it, which no cancel scope allows.
            ended = asyncio.create_task(self._watch(name, streams, log))

            async def wait() -> int:
                return await asyncio.shield(ended)

            lines, own_stream = streams[0], streams[2] if connections == 3 else None
            try:
                yield Child(name, lines, lines, log, error, own_stream, wait, self.actor.kill.remote)
            finally:
                with anyio.CancelScope(shield=True):
                    await lines.send_eof()
                    with suppress(ClusterError):
                        await call_actor(self.actor.stop.remote(), f"the {name} does not end", 2 * STOP_TIMEOUT_S)
                    await asyncio.wait([ended], timeout=STOP_TIMEOUT_S)
                    ended.cancel()
                    await asyncio.gather(ended, return_exceptions=True)

    async def _watch(self, name: str, streams: Sequence[SocketStream], log: Path) -> int:
        """Write the log of a process, until it has ended or its actor is gone, and nothing more is heard of it; return its exit status."""
        copying, status = asyncio.create_task(_copy_log(streams[1], log)), LOST
        try:
            status = await self.actor.wait.remote()
        except RayError as error:
            await in_thread(_write_log, log, f"\nagentrl: lost the {name}: {one_line(error)}\n".encode())
            for stream in streams:  # a node that is cut off would not end them
                with suppress(OSError):
                    stream.extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)  # noqa: S610  no Django here
        finally:
            await asyncio.wait([copying], timeout=LOG_TIMEOUT_S)
            copying.cancel()
        return status

    async def free_port(self) -> int:
        """Return a port that is free there."""
        return await call_actor(self.actor.free_port.remote(), f"{self.name} names no free port")

    async def bring(self, directory: Path, *, weights: bool = True) -> Path:
        """Have a directory of this machine there, once for all processes of the node. Without `weights`, without those of a model."""
        return await self.files.bring(self.node, directory, weights=weights)

    async def fetch(self, directory: Path, to: Path, *, for_servers: bool = False) -> None:
        """Copy a directory from there into a new one here and, with `for_servers`, at the same time to the nodes of the engine's servers."""
        readers = {server.node for server in self.servers} if for_servers else ()
        await self.files.fetch(self.node, directory, to, readers=readers)

    async def remove(self, directory: Path) -> None:
        """Delete what was brought, once no other process on the node uses it, or what was written there."""
        await self.files.release(self.node, directory)


async def _copy_log(stream: SocketStream, log: Path) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for content in stream:
            await in_thread(_write_log, log, content)


def _write_log(log: Path, content: bytes) -> None:
    with open_private(log, "ab") as file:
        file.write(content)
