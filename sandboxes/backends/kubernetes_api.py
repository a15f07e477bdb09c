"""Calls of a Kubernetes API server: objects as JSON over HTTP, and the streams of a container over a WebSocket.

aiohttp, which agentrl has anyway, and no client library: seven calls are used, and the libraries read a container's streams as text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError, error_line, one_line
from agentrl.sandboxes.backends.kubeconfig import ClusterAccess, load_access

CALL_TIMEOUT_S = 30.0
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS = range(4)
LONGEST_MESSAGE = 1 << 15
KEEPALIVE_S = 30.0
"""A balancer on the way forgets connections that are silent for a minute."""


class ApiError(SandboxError):
    """The API server refused a call."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes: {message} ({code} {reason})")
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Api:
    """An open session with an API server."""

    access: ClusterAccess
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
        """Call the API and return what it answers.

        Raises:
            ApiError: It refuses; it says why.
            SandboxError: It does not answer.
        """
        try:
            async with self.session.request(
                method, f"{self.access.server}{path}", json=body, params=query, **self._way()
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SandboxError(f"the Kubernetes API at {self.access.server} does not answer: {_said(error)}") from error
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.strip()[:300] or response.reason}
        if response.status >= 400:
            raise ApiError(
                response.status, str(answer.get("reason") or response.reason), one_line(str(answer.get("message")))
            )
        found: dict[str, Any] = answer
        return found

    @asynccontextmanager
    async def attach(self, namespace: str, pod: str, container: str) -> AsyncIterator[PodStreams]:
        """Yield the streams of the first process of a container.

        Raises:
            ApiError: The API server refuses.
            SandboxError: They cannot be had.
        """
        address = f"{self.access.server}/api/v1/namespaces/{namespace}/pods/{pod}/attach"
        query = {"container": container, "stdin": "true", "stdout": "true", "stderr": "true", "tty": "false"}
        try:
            socket = await self.session.ws_connect(
                address, params=query, protocols=PROTOCOLS, max_msg_size=0, **self._way()
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, error.message, f"the streams of the pod {pod} cannot be had") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SandboxError(f"the streams of the pod {pod} cannot be had: {_said(error)}") from error
        try:
            if socket.protocol not in PROTOCOLS:
                raise SandboxError(f"the Kubernetes API speaks none of {', '.join(PROTOCOLS)} (1.19 and later do)")
            async with background_tasks() as tasks:
                tasks.start_soon(_keep_alive, socket)
                yield PodStreams(socket)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await socket.close()

    def _way(self) -> dict[str, Any]:
        tls = {} if self.access.tls is None else {"ssl": self.access.tls, "server_hostname": self.access.server_name}
        return {**tls, "headers": dict(self.access.headers), "proxy": self.access.proxy}


@dataclass
class PodStreams:
    """The streams of a container's first process, as `agentrl.sandboxes.backends.streams.Streams`."""

    socket: aiohttp.ClientWebSocketResponse
    _errors: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            SandboxLostError: The connection is closed.
        """
        if self.socket.closed:
            raise SandboxLostError("its connection was closed")
        for at in range(0, len(data), LONGEST_MESSAGE):
            await self.socket.send_bytes(bytes([STDIN]) + data[at : at + LONGEST_MESSAGE])

    async def receive(self) -> bytes:
        """Return what it wrote next to its standard output.

        Raises:
            SandboxLostError: It ended, or the connection broke.
        """
        while True:
            message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                said = error_line(self._errors.decode(errors="replace"))
                raise SandboxLostError("its pod ended" + (f": {said}" if said else ""))
            channel, payload = message.data[0], message.data[1:]
            if channel == STDOUT and payload:
                return bytes(payload)
            if channel == STDERR:
                self._errors[:] = (self._errors + payload)[-4096:]
            elif channel == STATUS:
                status = json.loads(payload or b"{}")
                if status.get("status") == "Failure" and not self._errors:
                    self._errors += str(status.get("message")).encode()


async def _keep_alive(socket: aiohttp.ClientWebSocketResponse) -> None:
    while not socket.closed:
        await anyio.sleep(KEEPALIVE_S)
        try:
            await socket.ping()
        except (ConnectionError, aiohttp.ClientError):
            return  # whoever reads next is told


@asynccontextmanager
async def open_api(context: str | None, namespace: str | None) -> AsyncIterator[Api]:
    """Yield a session with the cluster. Its credentials are read anew: they expire.

    Raises:
        SandboxError: There is no configuration, or it makes no sense.
    """
    access = await in_thread(load_access, context, namespace)
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        yield Api(access, session)


def _said(error: BaseException) -> str:
    return one_line(error) if str(error) else type(error).__name__
