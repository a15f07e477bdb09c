"""How a Docker engine is reached: by the environment or the current context of the `docker` command, through the `docker` package."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import SandboxError, one_line

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.tls import TLSConfig

CALL_TIMEOUT_S = 60


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
