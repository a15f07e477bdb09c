"""Containers on the Docker engine: made, and removed with the images of their states, those of dead processes too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl.concurrency.threads import in_thread
from agentrl.sandboxes.backends.docker_connection import connect, engine_address, sdk_errors
from agentrl.sandboxes.backends.owner import is_dead, owner
from agentrl.sandboxes.seams import MB

if TYPE_CHECKING:
    from docker import DockerClient

LABEL = "agentrl.container"
"""Which process a container, and an image of its state, belongs to."""
CALL_TIMEOUT_S = 120
"""Bound of one call of the engine, such as a commit."""
PROCESSES = 4096
_WAIT = ["sh", "-c", "while :; do sleep 3600 & wait $!; done"]
"""The first process: it waits, and reaps what others leave."""


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The image of a container, and what its programs may use."""

    image: str | None = None
    """None: the run's `sandbox.image`; in `open_container`, agentrl's."""
    user: str | None = None
    """None: the image's."""
    network: bool = False
    memory_mb: int = 2048
    cpus: float = 1.0
    disk_mb: int | None = None
    """Size of one file. The engine's storage bounds the whole."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside the image's."""
    workdir: str | None = None
    """None: the image's."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine that programs see, read-only: {path inside: path here}."""
    runtime: str | None = None
    """OCI runtime of the engine, such as `runsc`."""


@contextmanager
def own_client() -> Iterator[DockerClient]:
    """Yield a client of the engine, whose responses are closed at the end, whether they were read or not."""
    with closing(connect(engine_address())) as client, ExitStack() as ends:

        def close_at_the_end(response: Any, **_: Any) -> None:
            ends.callback(response.close)

        client.api.hooks["response"].append(close_at_the_end)
        yield client


async def call_engine(function: Any, *arguments: Any) -> Any:
    """Return what a call of the engine gives, made in a thread.

    Raises:
        SandboxError: The engine does not answer, or refuses.
    """
    with sdk_errors("the Docker engine"):
        return await in_thread(function, *arguments)


def create_container(client: DockerClient, image: str, spec: ContainerSpec) -> str:
    """Make a container, which is not started yet, and return its id."""
    import docker.types

    disk = [docker.types.Ulimit(name="fsize", soft=spec.disk_mb * MB, hard=spec.disk_mb * MB)] if spec.disk_mb else []
    host = client.api.create_host_config(
        mem_limit=spec.memory_mb * MB,
        memswap_limit=spec.memory_mb * MB,
        nano_cpus=int(min(spec.cpus, client.info()["NCPU"]) * 1e9),
        pids_limit=PROCESSES,
        network_mode="bridge" if spec.network else "none",
        runtime=spec.runtime,
        ulimits=disk,
        mounts=[docker.types.Mount(to, here, type="bind", read_only=True) for to, here in spec.folders.items()],
    )
    created = client.api.create_container(
        image,
        command=_WAIT,
        environment=dict(spec.env),
        host_config=host,
        labels={LABEL: owner()},
        name=f"agentrl-{secrets.token_hex(6)}",
        user=spec.user,
        working_dir=spec.workdir,
    )
    return str(created["Id"])


def remove_left_over(client: DockerClient) -> None:
    """Remove the containers of processes that are dead, and the images of their states."""
    for one in client.api.containers(all=True, filters={"label": LABEL}):
        if is_dead(one["Labels"][LABEL]):
            remove_container(client, one["Id"])
    for one in client.api.images(filters={"label": LABEL}):
        if is_dead(one["Labels"][LABEL]):
            with _gone_already():
                client.api.remove_image(one["Id"], force=True)


def remove_container(client: DockerClient, container: str) -> None:
    """Remove a container, whatever it does."""
    with _gone_already():
        client.api.remove_container(container, force=True, v=True)


def remove_image(image: str) -> None:
    """Remove an image of a state."""
    with own_client() as client, _gone_already():  # that of the container is closed by now
        client.api.remove_image(image, force=True)


@contextmanager
def _gone_already() -> Iterator[None]:
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):  # gone, or going
            raise
