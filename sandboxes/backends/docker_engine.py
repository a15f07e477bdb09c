"""Sandboxes that are Docker containers.

A container is created once and serves many runs: its first process is `inside/first_process.py`, reached by attaching to its
standard streams (0.03 ms there and back), since `docker exec` would cost tens of milliseconds a run.
When this process dies, in whatever way, the container's input ends, so does its first process, and the engine removes it.

The `docker` package is used in threads, and not aiodocker: both start containers at the same pace, for the engine is what takes the time,
but its attached stream is a plain socket, which answers in half the time. (`python benchmarks/docker_sdks.py`)
"""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError, error_line
from agentrl.machine.sandbox_bounds import FILES
from agentrl.sandboxes.backends.control_group import OWN_PROCESSES, memory_of_a_sandbox
from agentrl.sandboxes.backends.docker_connection import (
    LABEL,
    engine_address,
    remove_container,
    remove_left_over,
    with_own_client,
)
from agentrl.sandboxes.backends.owner import owner
from agentrl.sandboxes.backends.start_arguments import FOLDERS, PATH, init_arguments, sandbox_environment
from agentrl.sandboxes.seams import DEFAULT_IMAGE, MB, WORK, SandboxSpec

if TYPE_CHECKING:
    from docker import DockerClient

IMAGES = Path(__file__).parents[1] / "images"
STREAM_HEADER = struct.Struct(">BxxxI")
"""Channel and length of a part of an attached stream."""
CPU_PERIOD_US = 100_000
FIRST_UID, LAST_UID = 10_000, 60_000
"""Users of sandboxes, each sandbox's one of its own: a rootless engine has no more than 65,536 of them."""


class Docker:
    """The backend on a Docker engine, or a Podman service, as `docker_connection` finds it. Needs `agentrl[docker]`."""

    name = "docker"

    def __init__(self, on_progress: Callable[[str], None] | None = None) -> None:
        self._on_progress = on_progress or (lambda line: print(line, file=sys.stderr, flush=True))

    async def holes(self) -> list[str]:
        """Return what a program can do here that it should not, in sentences; empty when nothing is known.

        Raises:
            SandboxError: The engine does not answer or refuses.
        """
        return _holes(await with_own_client(None, lambda client: client.info()))

    async def prepare(self, spec: SandboxSpec) -> None:
        """Fetch or build the image where it is missing, and remove the containers of dead processes.

        Raises:
            SandboxError: The engine does not answer, did not get the image, or is elsewhere and does not have this machine's folders.
        """
        engine = await in_thread(engine_address)
        if (engine.url or "").startswith("ssh:"):
            raise SandboxError(
                f"{engine}: warm sandboxes reach no engine over ssh; forward its socket, `ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock "
                "HOST`, and set DOCKER_HOST=unix:///tmp/engine.sock"
            )
        if spec.folders and not engine.is_here:
            (inside, here), *_ = spec.folders
            raise SandboxError(
                f"folders shows {here!r} at {inside!r}, and the engine at {engine} has no folder of this machine; put it into the image"
            )

        await with_own_client(engine, remove_left_over, engine)
        await with_own_client(engine, have_image, spec.image, self._on_progress)

    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[AttachedLink]:
        """Yield a new container.

        Raises:
            SandboxError: The engine does not answer or refuses.
        """
        # Found once: where the choice of the engine changes later, a container ends on the one that it was made on.
        engine = await in_thread(engine_address)
        name = f"agentrl-{secrets.token_hex(6)}"
        try:
            with closing(await with_own_client(engine, _start, name, spec)) as link:
                yield link
        finally:
            with anyio.CancelScope(shield=True), suppress(SandboxError):  # else it is found by its label
                await with_own_client(engine, remove_container, name)


def _start(client: DockerClient, name: str, spec: SandboxSpec) -> AttachedLink:
    import docker.types

    uid = FIRST_UID + secrets.randbelow(LAST_UID - FIRST_UID)
    memory = memory_of_a_sandbox(spec.limits)
    host_config = client.api.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cpu_period=CPU_PERIOD_US,
        cpu_quota=int(spec.cpus * CPU_PERIOD_US),
        ipc_mode="private",
        log_config=docker.types.LogConfig(type="none"),
        mem_limit=memory,
        memswap_limit=memory,
        mounts=[
            docker.types.Mount(inside, here, type="bind", read_only=True, propagation="rprivate")
            for inside, here in spec.folders
        ],
        network_mode="bridge" if spec.network else "none",
        pids_limit=spec.limits.processes + OWN_PROCESSES,
        read_only=True,
        runtime=spec.runtime,
        security_opt=["no-new-privileges"],
        tmpfs=dict.fromkeys(FOLDERS, f"exec,uid={uid},gid={uid},size={spec.limits.disk_mb * MB},nr_inodes={FILES}"),
        # Without a bound of the stack's own, that of all memory holds, and a thread gets 2 MB and not as much as the bound.
        ulimits=[docker.types.Ulimit(name="core", soft=0, hard=0), docker.types.Ulimit(name="stack", soft=-1, hard=-1)],
    )
    created = client.api.create_container(
        spec.image,
        command=["python3", *init_arguments(own_python=False)],
        entrypoint=[],
        environment={"PATH": PATH, "LANG": "C.UTF-8"},
        host_config=host_config,
        labels={LABEL: owner()},
        name=name,
        stdin_open=True,
        stop_signal="SIGKILL",
        user=f"{uid}:{uid}",
        working_dir=WORK,
    )
    link = _attach(client, created["Id"])
    try:
        client.api.start(created["Id"])
    except BaseException:
        link.close()
        raise
    return link


def _attach(client: DockerClient, container: str) -> AttachedLink:
    attached = client.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    with closing(attached), closing(attached._response):
        stream: socket.socket = getattr(attached, "_sock", attached)
        stream.setblocking(False)
        # The connection ends with its last file: this one outlives the client's.
        return AttachedLink(stream, stream.makefile("rb", buffering=0))


@dataclass
class AttachedLink:
    """The standard streams of a container, as the engine multiplexes them over one connection."""

    stream: socket.socket
    held: socket.SocketIO
    work: str = WORK
    nproc: None = None
    env: dict[str, str] = field(default_factory=lambda: sandbox_environment(WORK, PATH))
    _inbox: bytearray = field(default_factory=bytearray)
    _errors: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The connection broke.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self.stream.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(anyio.wait_writable)
            except OSError as error:
                raise SandboxLostError(f"its connection broke: {error}") from error

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: The container ended, or the connection broke.
        """
        output = b""
        while not output:
            try:
                data = self.stream.recv(1 << 18)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait(anyio.wait_readable)
                continue
            except OSError as error:
                raise SandboxLostError(f"its connection broke: {error}") from error
            if not data:
                said = error_line(self._errors.decode(errors="replace"))
                raise SandboxLostError("its container ended" + (f": {said}" if said else ""))
            self._inbox += data
            output = b"".join(self._payloads())
        return output

    def close(self) -> None:
        """Close the connection."""
        self.held.close()

    def _payloads(self) -> Iterable[bytes]:
        while len(self._inbox) >= STREAM_HEADER.size:
            channel, length = STREAM_HEADER.unpack_from(self._inbox)
            end = STREAM_HEADER.size + length
            if len(self._inbox) < end:
                return
            payload = bytes(self._inbox[STREAM_HEADER.size : end])
            del self._inbox[:end]
            if channel == 1:
                yield payload
            else:
                self._errors[:] = (self._errors + payload)[-4096:]

    async def _wait(self, until: Callable[[socket.socket], Any]) -> None:
        try:
            await until(self.stream)
        except (anyio.ClosedResourceError, ValueError) as error:
            raise SandboxLostError("its connection was closed") from error


def _holes(engine: dict[str, Any]) -> list[str]:
    """Return those of an engine, by what it says of itself."""
    counted = {"memory": "MemoryLimit", "processes": "PidsLimit", "swap": "SwapLimit", "CPU": "CpuCfsQuota"}
    missing = [what for what, name in counted.items() if not engine.get(name)]
    found = [f"the engine bounds no {what}: its control groups lack the controller" for what in missing]
    if not any("name=seccomp" in option for option in engine.get("SecurityOptions") or ()):
        found.append("the engine has no filter of system calls: agentrl's is alone")
    return found


def have_image(client: DockerClient, image: str, on_progress: Callable[[str], None]) -> None:
    """Fetch an image where it is missing, or build it if it is ours.

    Args:
        client: A client of the engine.
        image: The name of the image.
        on_progress: Takes lines for the user.

    Raises:
        SandboxError: The engine did not get it.
    """
    import docker.errors

    try:
        client.images.get(image)
        return
    except docker.errors.ImageNotFound:
        pass
    if image == DEFAULT_IMAGE:
        on_progress(f"building the image {image} from {IMAGES / 'Dockerfile'}")
        events = client.api.build(path=str(IMAGES), tag=image, rm=True, decode=True)
    else:
        on_progress(f"pulling the image {image}")
        events = client.api.pull(image, stream=True, decode=True)
    follow(events, on_progress)
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        raise SandboxError(f"the Docker engine did not get the image {image}") from None


def follow(events: Iterable[dict[str, Any]], on_progress: Callable[[str], None]) -> None:
    """Show the progress of a pull or a build, each layer at every tenth of its size.

    Raises:
        SandboxError: The engine tells of an error.
    """
    shown: dict[str, int] = {}
    for event in events:
        if "error" in event:
            raise SandboxError(f"the Docker engine: {event['error']}")
        layer, size = event.get("id", ""), event.get("progressDetail") or {}
        if size.get("total"):
            tenth = 10 * size.get("current", 0) // size["total"]
            if shown.get(layer) != tenth:
                shown[layer] = tenth
                on_progress(f"{layer}: {event['status']} {10 * tenth} % of {size['total'] / MB:.0f} MB")
        elif text := (event.get("stream") or event.get("status") or "").strip():
            on_progress(f"{layer}: {text}" if layer else text)
