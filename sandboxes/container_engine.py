"""What a container for an agent is made of, and how the Docker engine makes one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.sandboxes.backends.docker_connection import LABEL
from agentrl.sandboxes.backends.owner import owner
from agentrl.sandboxes.seams import MB

if TYPE_CHECKING:
    from docker import DockerClient

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
