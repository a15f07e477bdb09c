"""How a Docker engine is reached and called, through the `docker` package, and how what dead processes left there is removed.

The engine is that of the environment, or of the current context of the `docker` command.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.owner import is_dead

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.tls import TLSConfig

CALL_TIMEOUT_S = 120
"""Bound of one call of the engine, such as a commit."""
LABEL = "agentrl.owner"
"""Which process a container, or an image of its state, belongs to: "host:boot:pid:start of pid"."""


@dataclass(frozen=True)
class EngineAddress:
    """The address of a Docker engine."""

    url: str | None = None
    """None: the default socket."""
    tls: TLSConfig | None = None

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and so sees its folders and has its cores: over a unix socket."""
        return self.url is None or self.url.startswith(("unix:", "http+unix:", "/"))

    def __str__(self) -> str:
        return self.url or "the default socket"


def engine_address() -> EngineAddress:
    """Return the engine that the `docker` command would use: DOCKER_HOST, else DOCKER_CONTEXT, else the current context.

    Raises:
        SandboxError: The `docker` package is not installed, there is no such context, or certificates are missing.
    """
    with sdk_errors("the address of the Docker engine"):
        from docker.context import ContextAPI
        from docker.context.config import get_current_context_name
        from docker.utils import kwargs_from_env

        if os.environ.get("DOCKER_HOST"):
            found = kwargs_from_env()
            return EngineAddress(found["base_url"], found.get("tls"))
        name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
        if name == "default":
            return EngineAddress()
        context = ContextAPI.get_context(name)
    if context is None:
        raise SandboxError(f"there is no Docker context {name!r}; `docker context ls` lists them")
    return EngineAddress(context.Host, context.TLSConfig)


@contextmanager
def sdk_errors(what: str) -> Iterator[None]:
    """Raise the errors of the `docker` package as agentrl's, for as long as the context lasts.

    Args:
        what: The beginning of their messages.

    Raises:
        SandboxError: The package is not installed, or the engine does not answer or refuses.
    """
    try:
        import docker.errors
        import requests
    except ImportError as error:
        raise SandboxError(
            "the package `docker` is not installed: pip install -e '/path/to/agentrl[docker]'"
        ) from error
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"{what}: {one_line(error)}") from error


def connect(engine: EngineAddress) -> DockerClient:
    """Return a client of a Docker engine, which speaks that engine's version of the API.

    Raises:
        SandboxError: It does not answer; the message names the remedy.
    """
    import docker.errors
    import docker.utils

    try:
        address = docker.utils.parse_host(engine.url).removeprefix("http+unix://")
        if address.startswith("/"):  # the package leaves a socket that found nobody to the garbage collector
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address)
        return docker.DockerClient(
            base_url=engine.url, tls=engine.tls or False, timeout=CALL_TIMEOUT_S, version="auto", use_ssh_client=True
        )
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxError(
            f"no Docker engine answers at {engine} ({one_line(error)}); start one, or set DOCKER_HOST"
        ) from error


@contextmanager
def own_client(engine: EngineAddress | None = None) -> Iterator[DockerClient]:
    """Yield a client of the engine, whose responses are closed at the end, whether they were read or not."""
    with closing(connect(engine or engine_address())) as client, ExitStack() as ends:

        def close_at_the_end(response: Any, **_: Any) -> None:
            ends.callback(response.close)

        client.api.hooks["response"].append(close_at_the_end)
        yield client


async def call_engine(function: Any, *arguments: Any) -> Any:
    """Return what a call of the engine gives, made in a thread.

    Raises:
        SandboxError: The package is not installed, or the engine does not answer or refuses.
    """
    with sdk_errors("the Docker engine"):
        return await in_thread(function, *arguments)


async def with_own_client(engine: EngineAddress | None, function: Any, *arguments: Any) -> Any:
    """Return what `function` gives, called in a thread with a client of its own: none is shared between threads, or outlives the engine.

    Raises:
        SandboxError: The package is not installed, or the engine does not answer or refuses.
    """

    def call() -> Any:
        with own_client(engine) as client:
            return function(client, *arguments)

    return await call_engine(call)


def remove_left_over(client: DockerClient, engine: EngineAddress) -> None:
    """Remove the containers of processes that are dead, and the images of their states."""
    for one in client.api.containers(all=True, filters={"label": LABEL}):
        if is_dead(one["Labels"][LABEL], same_boot=not engine.is_here):
            remove_container(client, one["Id"])
    for one in client.api.images(filters={"label": LABEL}):
        if is_dead(one["Labels"][LABEL], same_boot=not engine.is_here):
            remove_image(client, one["Id"])


def remove_container(client: DockerClient, container: str) -> None:
    """Remove a container, whatever it does."""
    with _gone_already():
        client.api.remove_container(container, force=True, v=True)


def remove_image(client: DockerClient, image: str) -> None:
    """Remove an image of a state."""
    with _gone_already():
        client.api.remove_image(image, force=True)


@contextmanager
def _gone_already() -> Iterator[None]:
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):  # gone, or going
            raise
