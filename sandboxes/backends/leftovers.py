"""Remove the containers and images that a killed process left, by the mark of whose they were.

A container that outlives its process carries its owner's name as a label.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agentrl.errors import SandboxError

if TYPE_CHECKING:
    from docker import APIClient

    from agentrl.sandboxes.backends.docker_connection import DockerEngine

LABEL = "agentrl.owner"
"""Which process a container, or an image of its state, belongs to: "host:boot:pid:start of pid"."""


def owner() -> str:
    """Return the name of this process, "host:boot:pid:start of pid": its number alone may be used again."""
    return f"{socket.gethostname()}:{_boot()}:{os.getpid()}:{_started_at(os.getpid())}"


def is_dead(owner: str, *, same_boot: bool = False) -> bool:
    """Return whether the owner is known to be dead. One of another machine, which may share an engine with this one, may live.

    Args:
        owner: What `owner` returned to it.
        same_boot: Take no owner of another start of this machine for dead: another machine may have the same name.

    Raises:
        ValueError: The text is none of `owner`'s.
    """
    host, boot, pid, started = owner.split(":")
    if host != socket.gethostname() or (same_boot and boot != _boot()):
        return False
    try:
        return boot != _boot() or _started_at(int(pid)) != started
    except OSError:  # this process has no descriptor left to look with
        return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started_at(pid: int) -> str:
    """Return the start of a process, in clock ticks since the machine's; "" when there is no such process.

    Raises:
        OSError: It cannot be known.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@asynccontextmanager
async def container_name(engine: DockerEngine) -> AsyncIterator[str]:
    """Yield the name of a container that is to be made. It is removed at the end of the context."""
    name = f"agentrl-{secrets.token_hex(6)}"
    try:
        yield name
    finally:
        with anyio.CancelScope(shield=True), suppress(SandboxError):  # else it is found by its label
            await engine.call(remove_container, name)


def remove_left_over(client: APIClient, engine: DockerEngine) -> None:
    """Remove the containers of processes that are dead, and the images of their states."""
    found = {"label": LABEL}
    for remove, things in (
        (remove_container, client.containers(all=True, filters=found)),
        (remove_image, client.images(filters=found)),
    ):
        for one in things:
            if is_dead(one["Labels"][LABEL], same_boot=not engine.is_here):
                remove(client, one["Id"])


def remove_container(client: APIClient, container: str) -> None:
    """Remove a container, running or not."""
    _remove(client.remove_container, container, v=True)


def remove_image(client: APIClient, image: str) -> None:
    """Remove an image of a state."""
    _remove(client.remove_image, image)


def _remove(call: Callable[..., None], name: str, **options: bool) -> None:
    from docker.errors import APIError

    try:
        call(name, force=True, **options)
    except APIError as error:
        if error.status_code not in (404, 409):  # gone, or going
            raise
