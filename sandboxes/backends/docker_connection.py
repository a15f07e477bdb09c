"""How a Docker engine is reached: a unix socket, TCP, TLS or ssh, as the environment or a context of the `docker` command has it.

Whatever it is, a container's attached stream comes out as a plain socket: ssh runs with one for its input and output, and a thread
carries what TLS encrypts.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import SandboxError, one_line

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.tls import TLSConfig

CALL_TIMEOUT_S = 60
OLDEST_API = "1.24"
"""The version of the API that a client speaks until the engine has said its own."""
STREAM_HEADER = struct.Struct(">BxxxI")
"""Channel and length of a part of an attached stream."""
STDERR = 2
PART = 1 << 16
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""An engine's machine that is silent for a minute is gone."""
TLS_REMEDY = "ca.pem, cert.pem and key.pem of DOCKER_CERT_PATH, or of the context, must be those that the engine trusts and its name be in its certificate; `docker version` tries them"


@dataclass(frozen=True)
class Engine:
    """The address of a Docker engine."""

    url: str | None = None
    """None: the default socket."""
    tls: TLSConfig | None = None
    product: str = "Docker engine"
    remedy: str = "start one, or set DOCKER_HOST"

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and so sees its folders and has its cores: over a unix socket."""
        return self.url is None or self.url.startswith(("unix:", "http+unix:", "/"))

    def __str__(self) -> str:
        return self.url or "the default socket"


def engine_address() -> Engine:
    """Return the engine that the `docker` command would use: DOCKER_HOST, else DOCKER_CONTEXT, else the current context.

    Raises:
        SandboxError: The Docker SDK is not installed, there is no such context, or certificates are missing.
    """
    with sdk_errors("the address of the Docker engine"):
        from docker.context import ContextAPI
        from docker.context.config import get_current_context_name
        from docker.utils import kwargs_from_env

        if os.environ.get("DOCKER_HOST"):
            found = kwargs_from_env()
            return Engine(found["base_url"], found.get("tls"))
        name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
        if name == "default":
            return Engine()
        context = ContextAPI.get_context(name)
    if context is None:
        raise SandboxError(f"there is no Docker context {name!r}; `docker context ls` lists them")
    return Engine(context.Host, context.TLSConfig)


@contextmanager
def sdk_errors(what: str) -> Iterator[None]:
    """Raise the errors of the Docker SDK as agentrl's, for as long as the context lasts.

    Args:
        what: The beginning of their messages.

    Raises:
        SandboxError: The SDK is not installed, or the engine does not answer or refuses.
    """
    try:
        import docker.errors
        import requests
    except ImportError as error:
        raise SandboxError("the Docker SDK is not installed: pip install -e '/path/to/agentrl[docker]'") from error
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        remedy = _tls_remedy(error)
        raise SandboxError(f"{what}: {one_line(error)}{remedy and f'; {remedy}'}") from error


def connect(engine: Engine) -> DockerClient:
    """Return a client of a Docker engine, which speaks that engine's version of the API.

    Raises:
        SandboxError: It does not answer; the message names the remedy.
    """
    import docker.errors
    import docker.utils

    try:
        address = docker.utils.parse_host(engine.url).removeprefix("http+unix://")
        if address.startswith("ssh://"):
            # Not the parsed address, which has a port where the user's ssh configuration has another.
            return _over_ssh(engine.url or address)
        if address.startswith("/"):
            # The SDK leaves a socket that found nobody to the garbage collector.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address)
        client = docker.DockerClient(
            base_url=engine.url, tls=engine.tls or False, timeout=CALL_TIMEOUT_S, version=OLDEST_API
        )
        if engine.tls:
            # REQUESTS_CA_BUNDLE would take the place of the engine's own authority.
            client.api.trust_env = False
        return _settled(client)
    except (docker.errors.DockerException, OSError) as error:
        remedy = _tls_remedy(error) or engine.remedy
        raise SandboxError(f"no {engine.product} answers at {engine} ({error}); {remedy}") from error


def _over_ssh(url: str) -> DockerClient:
    import docker.errors

    from agentrl.sandboxes.backends.docker_ssh import SshAdapter

    ssh = SshAdapter(url, CALL_TIMEOUT_S)
    client = docker.DockerClient(base_url="unix:///nothing-connects-here", version=OLDEST_API, timeout=CALL_TIMEOUT_S)
    client.api.mount("http+docker://", ssh)
    try:
        return _settled(client)
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxError(
            f"no Docker engine answers at {url} ({ssh.what_ssh_said() or error}); try `{ssh.trial}`: it must ask nothing"
        ) from error


def _settled(client: DockerClient) -> DockerClient:
    """Return a client that speaks the engine's version of the API.

    Raises:
        DockerException: The engine refuses.
        OSError: It does not answer.
    """
    try:
        client.api._version = client.version(api_version=False)["ApiVersion"]
    except BaseException:
        client.close()
        raise
    return client


def attach(client: DockerClient, container: str) -> socket.socket:
    """Return the standard streams of a container that is not started yet, as the engine multiplexes them."""
    attached = client.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    with closing(attached), closing(attached._response):
        theirs = getattr(attached, "_sock", attached)
        if isinstance(theirs, ssl.SSLSocket):
            stream = _decrypted(theirs)
        else:
            # A socket of our own on the same connection: the SDK's closes with the response that it came with.
            stream = socket.socket(fileno=os.dup(theirs.fileno()))
            _keep_alive(stream)
            theirs.close()
    stream.setblocking(False)
    return stream


def _keep_alive(stream: socket.socket) -> None:
    if stream.family != socket.AF_UNIX:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if (number := getattr(socket, option, None)) is not None:
                stream.setsockopt(socket.IPPROTO_TCP, number, value)


def _decrypted(far: ssl.SSLSocket) -> socket.socket:
    """Return a plain socket on what a TLS connection carries, and have a thread of its own carry it until either end is closed."""
    held = far.makefile("rwb", buffering=0)  # so that the SDK's client, which closes the connection, does not end it
    _keep_alive(far)
    near, ours = socket.socketpair()

    def carry() -> None:
        with closing(held), closing(far), closing(near):
            try:
                _carry(far, near)
            except OSError as error:
                said = f"the connection to the engine broke: {error}".encode()
                with suppress(OSError):
                    near.send(STREAM_HEADER.pack(STDERR, len(said)) + said)

    far.setblocking(False)
    near.setblocking(False)
    threading.Thread(target=carry, name="docker over TLS", daemon=True).start()
    return ours


def _carry(far: ssl.SSLSocket, near: socket.socket) -> None:
    """Carry bytes both ways until one end is closed. One thread does it, for a TLS connection is not safe with two.

    Raises:
        OSError: The connection broke.
    """
    out = back = b""
    while True:
        before = len(out), len(back)
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            if not back and not (back := far.recv(PART)):
                return
        with suppress(BlockingIOError):
            if back:
                back = back[near.send(back) :]
            if not out and not (out := near.recv(PART)):
                return
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if out:
                out = out[far.send(out) :]
        if before == (len(out), len(back)):
            poll = select.poll()
            poll.register(far, (0 if back else select.POLLIN) | (select.POLLOUT if out else 0))
            poll.register(near, (0 if out else select.POLLIN) | (select.POLLOUT if back else 0))
            poll.poll()


def _tls_remedy(error: Exception) -> str:
    """Return what to do about an error of TLS; empty for other errors."""
    said = str(error)
    if "HTTPS server" in said:
        return "it speaks TLS: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
    if any(word in said for word in ("SSL", "TLS", "certificate")):
        return TLS_REMEDY
    return ""
