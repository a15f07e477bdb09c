"""The Ray actors that start a run's processes, one for each, and calls of them.

main process ──Ray: start, wait, kill, stop─────────────────────────► actor ──starts──► process
             ◄─TCP: standard input and output, standard error, the stream─────────────────┘

A process has these connections themselves as its files, so nothing that it reads or writes passes through its actor. It ends when its
standard input closes: when the main process is done with it, loses its actor, or ends.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import ray
from anyio.abc import Process
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, RayTaskError

import agentrl
from agentrl.errors import ClusterError, NodeLostError, one_line
from agentrl.system.child_process import end_process, kill_group
from agentrl.system.host import free_port

CALL_TIMEOUT_S = 60.0
"""Bound of a call of an actor that has nothing to copy."""
CONNECT_TIMEOUT_S = 30.0
"""Bound of connecting a process with the main process."""
GREETING_TIMEOUT_S = 1.0
"""How long a connection may take to say whose it is, while the next one waits."""
TOKEN_BYTES = 32
"""What each connection begins with, before a byte with its number."""
Answer = TypeVar("Answer")


class NodeProcess:
    """One process on the node of this actor: an inference server, a worker, or a rank of the trainer, as the actor's name says."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0))
        self._listener.setblocking(False)

    async def place(self) -> dict[str, Any]:
        """Return where this actor is, and how the main process connects with its process: fields of a `RayHost`."""
        address, port = self._listener.getsockname()[:2]
        node = ray.get_runtime_context().get_node_id()
        return {
            "node": node,
            "name": f"node {address} ({node[:8]})",
            "address": address,
            "port": port,
            "token": self._token,
            "python": sys.executable,
            "package": Path(agentrl.__file__).parent,
            "work": Path.cwd(),
        }

    async def free_port(self) -> int:
        """Return a free port of this machine."""
        return free_port(self._listener.getsockname()[0])

    async def start(self, command: Sequence[str], env: Mapping[str, str], connections: int) -> None:
        """Start the process, once the main process has made its connections.

        Args:
            command: The program and its arguments. The stream's descriptor becomes the last, if there is one.
            env: What it has in its environment beside what this actor has.
            connections: How many: standard input and output, standard error and, it may be, the stream.

        Raises:
            ClusterError: The program cannot be started, or the connections are not made.
        """
        # Ray's own settings of this actor are not its child's.
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        with ExitStack() as opened:
            try:
                lines, log, *streams = [
                    opened.enter_context(connection).fileno()
                    for connection in await _accept(self._listener, self._token, connections)
                ]
                self._process = await anyio.open_process(
                    [*command, *map(str, streams)],
                    stdin=lines,
                    stdout=lines,
                    stderr=log,
                    pass_fds=streams,
                    start_new_session=True,
                    env={**own, **env},
                )
            except OSError as error:
                raise ClusterError(f"{command[0]}: {one_line(error)}") from None

    async def wait(self) -> int:
        """Wait until the process has ended; its exit status, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the process and all that it started."""
        if self._process is not None:
            kill_group(self._process)

    async def stop(self) -> None:
        """Wait for the end of the process, whose standard input is closed by now; kill it where it does not come, and all that it started."""
        if self._process is not None:
            await end_process(self._process)


async def call_actor(call: Awaitable[Answer], what: str, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
    """Return the answer of an actor.

    Args:
        call: The call, which is on its way.
        what: The failure, for messages: "no node has room for it".
        timeout_s: How long it may take.

    Raises:
        NodeLostError: The actor or its node is gone.
        ClusterError: It does not answer in time, or with an error.
    """
    try:
        with anyio.fail_after(timeout_s):
            return await call
    except (RayActorError, ActorUnschedulableError) as error:
        raise NodeLostError(f"{what}: {one_line(error)}") from error
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        raise ClusterError(f"{what}: {one_line(cause)}") from error
    except TimeoutError:
        raise ClusterError(f"{what}: no answer within {timeout_s:g} s") from None


async def _accept(listener: socket.socket, token: bytes, connections: int) -> list[socket.socket]:
    """Return the main process's connections in their order. One that does not begin with the token, or not soon, is closed.

    Raises:
        ClusterError: They are not made in time.
    """
    loop = asyncio.get_running_loop()
    accepted: dict[int, socket.socket] = {}
    with anyio.move_on_after(CONNECT_TIMEOUT_S):
        while len(accepted) < connections:
            connection, _ = await loop.sock_accept(listener)
            greeting = b""
            with suppress(OSError), anyio.move_on_after(GREETING_TIMEOUT_S):
                greeting = await loop.sock_recv(connection, TOKEN_BYTES + 1)
            if not secrets.compare_digest(greeting[:-1], token):
                connection.close()
                continue
            connection.setblocking(True)  # as a program expects of its files
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted[greeting[-1]] = connection
    if len(accepted) < connections:
        raise ClusterError(f"the main process did not connect within {CONNECT_TIMEOUT_S:g} s")
    listener.close()
    return [accepted[number] for number in range(connections)]
