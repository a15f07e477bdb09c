"""How a Docker engine is reached and called, through the `docker` package.

    find_engine() ─► DockerEngine.call(function) ─► function(client), in a thread, with a client of its own
                                                    └─ an attached connection ─► DockerStream

The engine is that of the environment, or of the current context of the `docker` command.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from agentrl.errors import SandboxError, SandboxLostError, one_line
from agentrl.system.tasks import in_thread

if TYPE_CHECKING:
    from docker import APIClient
    from docker.tls import TLSConfig

CALL_TIMEOUT_S = 120
"""Bound of one call of the engine, such as a commit."""
STREAM_HEADER = struct.Struct(">BxxxI")
"""Channel and length of a part of an attached stream."""
STDOUT = 1
CPU_PERIOD_US = 100_000


@dataclass(frozen=True)
class DockerEngine:
    """A Docker engine."""

    url: str
    tls: TLSConfig | None
    version: str = "auto"
    """Of its API. "auto" is asked for with each client."""

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and so sees its folders: over a unix socket."""
        return self.url.startswith("unix:")

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def client(self) -> Iterator[APIClient]:
        """Yield a client, whose responses are closed at the end, whether they were read or not.

        Raises:
            SandboxError: The engine does not answer or refuses.
        """
        from docker import APIClient

        responses: list[Any] = []
        with docker_errors():
            client = APIClient(self.url, self.version, CALL_TIMEOUT_S, tls=self.tls or False)
            client.hooks["response"].append(lambda response, **_: responses.append(response))
            try:
                yield client
            finally:
                for response in (*responses, client):
                    response.close()

    async def call(self, function: Any, *arguments: Any) -> Any:
        """Return what `function(client, *arguments)` gives, called in a thread. No client is shared, or outlives the engine.

        Raises:
            SandboxError: The engine does not answer or refuses.
        """

        def call() -> Any:
            with self.client() as client:
                return function(client, *arguments)

        return await in_thread(call)


@contextmanager
def docker_errors() -> Iterator[None]:
    """Raise the errors of the `docker` package as agentrl's, for as long as the context lasts.

    Raises:
        SandboxError: The package is not installed, or the engine does not answer or refuses.
    """
    try:
        import docker.errors
        import requests
        import urllib3.exceptions
    except ImportError as error:
        raise SandboxError(
            "the package `docker` is not installed: pip install -e '/path/to/agentrl[docker]'"
        ) from error
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise SandboxError(f"the Docker engine: {one_line(error)}") from error


def find_engine() -> DockerEngine:
    """Return the engine that the `docker` command would use: of DOCKER_HOST, else of DOCKER_CONTEXT, else of the current context.

    Raises:
        SandboxError: The `docker` package is not installed, there is no such context, or no engine answers; the message names the remedy.
    """
    with docker_errors():
        from docker.context import ContextAPI
        from docker.utils import kwargs_from_env

        if os.environ.get("DOCKER_HOST"):
            found = kwargs_from_env()
            engine = DockerEngine(found["base_url"], found.get("tls"))
        else:
            name = os.environ.get("DOCKER_CONTEXT")
            if (context := ContextAPI.get_context(name)) is None:
                raise SandboxError(f"there is no Docker context {name!r}; `docker context ls` lists them")
            engine = DockerEngine(context.Host, context.TLSConfig)
    if engine.url.startswith("ssh:"):
        raise SandboxError(
            f"{engine}: no engine is reached over ssh; forward its socket, `ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST`, "
            "and set DOCKER_HOST=unix:///tmp/engine.sock"
        )
    try:
        if engine.is_here:  # the package leaves a socket that found no engine to the garbage collector
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(engine.url.removeprefix("unix://"))
        with engine.client() as client:
            return DockerEngine(engine.url, engine.tls, client.api_version)
    except (SandboxError, OSError) as error:
        raise SandboxError(
            f"no Docker engine answers at {engine} ({one_line(error)}); start one, or set DOCKER_HOST"
        ) from error


class DockerStream:
    """The standard streams of a container, or of a program in one, as the engine multiplexes them over one connection."""

    def __init__(self, attached: Any) -> None:
        """Take over what the `docker` package returns of an attached connection; it closes its own end."""
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        self._socket.setblocking(False)
        self._held = self._socket.makefile("rb", buffering=0)  # the connection ends with its last file
        self._inbox = bytearray()
        with suppress(ssl.SSLWantReadError):  # what came with the head of the response is the response's reader's
            self._inbox += attached._response.raw._fp.fp.peek()

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The connection broke.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise SandboxLostError(f"its connection broke: {error}") from error

    async def receive_part(self) -> tuple[int, bytes] | None:
        """Return a part of the output, and its channel: 1 or 2. None at the end."""
        while True:
            if len(self._inbox) >= STREAM_HEADER.size:
                channel, length = STREAM_HEADER.unpack_from(self._inbox)
                end = STREAM_HEADER.size + length
                if len(self._inbox) >= end:
                    part = bytes(self._inbox[STREAM_HEADER.size : end])
                    del self._inbox[:end]
                    return channel, part
            try:
                data = self._socket.recv(1 << 18)
            except (BlockingIOError, ssl.SSLWantReadError):
                await anyio.wait_readable(self._socket)
                continue
            except OSError:
                return None
            if not data:
                return None
            self._inbox += data

    def close(self) -> None:
        """Close the connection."""
        self._held.close()
