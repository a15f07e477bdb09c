"""Sandboxes that are Docker containers.

A container is created once and serves many runs: its first process is `inside/first_process.py`, reached by attaching to its
standard streams (0.03 ms there and back), since `docker exec` would cost tens of milliseconds a run.
When this process dies, in whatever way, the container's input ends, so does its first process, and the engine removes it.

The `docker` package is used in threads, and not aiodocker: both start containers at the same pace, for the engine is what takes the time,
but its attached stream is a plain socket, which answers in half the time.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

from agentrl.errors import SandboxLostError, error_line
from agentrl.sandboxes.backends.docker_connection import CPU_PERIOD_US, STDOUT, DockerStream, find_engine
from agentrl.sandboxes.backends.docker_images import have_image
from agentrl.sandboxes.backends.leftovers import LABEL, container_name, owner, remove_left_over
from agentrl.sandboxes.backends.start_arguments import FOLDERS, PATH, init_arguments, sandbox_environment
from agentrl.sandboxes.linked_sandbox import LinkedSandbox
from agentrl.sandboxes.sandbox import MB, WORK, Sandbox, SandboxSpec
from agentrl.system.tasks import in_thread

if TYPE_CHECKING:
    from docker import APIClient

FIRST_UID, LAST_UID = 10_000, 60_000
"""Users of sandboxes, each sandbox's one of its own: a rootless engine has no more than 65,536 of them."""
FILES = 16_384
"""In a folder of memory."""
OWN_MEMORY_MB, OWN_PROCESSES = 64, 1
"""For our own process, and what it holds for programs."""


class Docker:
    """The backend on a Docker engine, or a Podman service, as `docker_connection` finds it. Needs `agentrl[docker]`."""

    name = "docker"

    holes = "what the engine cannot bound: `docker info` ends with warnings of it"
    """What a program can do here that it should not."""

    async def prepare(self, spec: SandboxSpec) -> None:
        """Fetch or build the image where it is missing, and remove the containers of dead processes.

        Raises:
            SandboxError: The engine does not answer, or did not get the image.
        """
        engine = await in_thread(find_engine)
        await engine.call(remove_left_over, engine)
        await engine.call(have_image, spec.image)

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Yield a new container.

        Raises:
            SandboxError: The engine does not answer or refuses.
        """
        # Found once: where the choice of the engine changes later, a container ends on the one that it was made on.
        engine = await in_thread(find_engine)
        async with container_name(engine) as name:
            link, path = await engine.call(_start, name, spec)
            with closing(link):
                async with LinkedSandbox(link, spec, env=sandbox_environment(WORK, path)).open() as sandbox:
                    yield sandbox


def _start(client: APIClient, name: str, spec: SandboxSpec) -> tuple[AttachedLink, str]:
    """Start a container, and return the link to it and the PATH of its image."""
    from docker.types import LogConfig, Ulimit

    uid = FIRST_UID + secrets.randbelow(LAST_UID - FIRST_UID)
    limits = spec.limits
    memory = (limits.memory_mb + limits.disk_mb + OWN_MEMORY_MB) * MB  # programs, one full folder, our own process
    variables = client.inspect_image(spec.image)["Config"].get("Env") or ()
    path = dict(one.partition("=")[::2] for one in variables).get("PATH", PATH)
    host = client.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cpu_quota=CPU_PERIOD_US,
        cpu_period=CPU_PERIOD_US,
        ipc_mode="private",
        log_config=LogConfig(type="none"),
        mem_limit=memory,
        memswap_limit=memory,
        network_mode="none",
        pids_limit=limits.processes + OWN_PROCESSES,
        read_only=True,
        security_opt=["no-new-privileges"],
        tmpfs=dict.fromkeys(FOLDERS, f"exec,uid={uid},gid={uid},size={limits.disk_mb * MB},nr_inodes={FILES}"),
        # Without a bound of the stack's own, that of all memory holds, and a thread gets 2 MB and not as much as the bound.
        ulimits=[Ulimit(name="core", soft=0, hard=0), Ulimit(name="stack", soft=-1, hard=-1)],
    )
    client.create_container(
        spec.image,
        command=["python3", *init_arguments()],
        entrypoint=[],
        environment={"PATH": path, "LANG": "C.UTF-8"},
        host_config=host,
        labels={LABEL: owner()},
        name=name,
        stdin_open=True,
        stop_signal="SIGKILL",
        user=f"{uid}:{uid}",
        working_dir=WORK,
    )
    attached = client.attach_socket(name, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    client.start(name)
    return AttachedLink(attached), path


class AttachedLink(DockerStream):
    """The link over a container's standard streams."""

    _errors = b""

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: The container ended, or the connection broke.
        """
        while (part := await self.receive_part()) is not None:
            channel, data = part
            if channel == STDOUT:
                return data
            self._errors = (self._errors + data)[-4096:]
        line = error_line(self._errors.decode(errors="replace"))
        raise SandboxLostError("its container ended" + (f": {line}" if line else ""))
