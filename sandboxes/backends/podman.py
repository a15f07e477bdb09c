"""Sandboxes that are containers of a rootless Podman, over the API of Docker's that its service speaks.

The kernel lets an ordinary user have no control group of version 1, and Podman ignores limits in silence then, though it says that it
has them. So none is asked for: memory, processes and CPU time are counted in the sandbox, as bubblewrap's are without a group, and what
no process's size shows is refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from agentrl.errors import SandboxError
from agentrl.sandboxes.backends.docker_connection import Engine
from agentrl.sandboxes.backends.docker_engine import Docker, cores_of
from agentrl.sandboxes.backends.start_arguments import init_arguments
from agentrl.sandboxes.seams import SandboxSpec

if TYPE_CHECKING:
    from docker import DockerClient

_PINNED = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


class Podman(Docker):
    """The backend on a Podman service of this user: CONTAINER_HOST, or the socket of `podman system service`. Needs `agentrl[docker]`."""

    name = "podman"
    product = "Podman service"
    # Podman makes the last two, writable, in a container whose root is not.
    folders: ClassVar[tuple[str, ...]] = (*Docker.folders, "/run", "/var/tmp")  # noqa: S108
    empty = "ro,size=4096"
    network = "slirp4netns"
    counted = False
    # /dev/zero gives shared memory that nothing here counts.
    security: ClassVar[tuple[str, ...]] = ("no-new-privileges", "mask=/dev/zero")
    isolates: ClassVar = {
        "files": "the image's, read-only; /sandbox, /tmp and /dev/shm in memory, bounded",
        "processes": "a namespace, new for each user; the number by RLIMIT_NPROC; all are killed after each run",
        "network": "a namespace of its own without interfaces, new for each user, unless network = true",
        "memory": "looked at every 10 ms, and RLIMIT_DATA for each process; no control group",
        "cpu": "CPU seconds looked at every 10 ms, and RLIMIT_CPU; pinned to a core; no control group",
        "privileges": "a user namespace of an ordinary user; in it an unprivileged user, another each time; no capabilities, no-new-privileges",
        "system calls": "Podman's default filter and agentrl's",
    }

    async def holes(self) -> list[str]:
        """Return what a program can do here that it should not, in sentences."""
        return [
            "no control group is used: socket buffers are bounded only by processes × open files",
            "no control group is used: CPU time of children that end within 10 ms, unwaited for, is not seen",
            "no control group is used: a program may leave the cores that it is pinned to",
        ]

    def _engine(self) -> Engine:
        if (address := os.environ.get("CONTAINER_HOST")) is None:
            folder = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
            address = f"unix://{folder}/podman/podman.sock"
        if not address.startswith("unix://"):
            raise SandboxError(
                f"CONTAINER_HOST = {address!r}: sandboxes of Podman are on this machine; name a unix:// socket"
            )
        return Engine(
            address,
            product=self.product,
            remedy="start `podman system service --time 0` as an ordinary user, or set CONTAINER_HOST",
        )

    def _check(self, client: DockerClient, engine: Engine, spec: SandboxSpec) -> None:
        if spec.cpus < 1:
            raise SandboxError(
                f"cpus = {spec.cpus}: a rootless Podman bounds no part of a core; use 1 or more, or Docker"
            )
        if spec.runtime is not None:
            raise SandboxError(
                f"runtime = {spec.runtime!r}: Podman's service takes that of containers.conf; set it there"
            )
        super()._check(client, engine, spec)

    def _bounds(self, client: DockerClient, engine: Engine, spec: SandboxSpec, core: int | None) -> dict[str, Any]:
        return {}

    def _command(self, client: DockerClient, engine: Engine, spec: SandboxSpec, core: int | None) -> list[str]:
        cores, count = cores_of(client, engine), max(1, round(spec.cpus))
        pinned = {((core or 0) * count + i) % cores for i in range(count)}
        started = init_arguments(spec, own_python=False, counted=False)
        return ["python3", "-I", "-c", _PINNED, ",".join(map(str, pinned)), *started]
