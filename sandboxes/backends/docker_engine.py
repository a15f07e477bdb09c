"""Sandboxes that are Docker containers.

A container is created once and serves many runs: its first process is `inside/first_process.py`, reached by attaching to its
standard streams (0.03 ms there and back), since `docker exec` would cost tens of milliseconds a run.
When this process dies, in whatever way, the container's input ends, so does its first process, and the engine removes it.

The SDK is `docker`, in threads, and not aiodocker: both start containers at the same pace, for the engine is what takes the time,
but its attached stream is a plain socket, which answers in half the time; and Docker itself maintains it.
(`python benchmarks/docker_sdks.py`)
"""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError, error_line
from agentrl.sandboxes.backends.control_group import OWN_PROCESSES, memory_of_a_sandbox
from agentrl.sandboxes.backends.docker_connection import (
    STREAM_HEADER,
    Engine,
    attach,
    connect,
    engine_address,
    sdk_errors,
)
from agentrl.sandboxes.backends.owner import is_dead, owner
from agentrl.sandboxes.backends.start_arguments import (
    FOLDERS,
    PATH,
    PRISTINE_RIGHTS,
    init_arguments,
    sandbox_environment,
)
from agentrl.sandboxes.seams import DEFAULT_IMAGE, MB, WORK, SandboxSpec

if TYPE_CHECKING:
    from docker import DockerClient

T = TypeVar("T")

OWNER_LABEL = "agentrl.owner"
"""Which process a container belongs to: "host:boot:pid:start of pid"."""
IMAGES = Path(__file__).parents[1] / "images"
_cores: dict[str, int] = {}
"""How many an engine has."""
_in_use: set[str] = set()
"""The names of this process's containers that a sandbox has; any other with this process's label is left over."""


class Docker:
    """The backend on a Docker engine, here or elsewhere, found as the `docker` command finds it. Needs `agentrl[docker]`."""

    name = "docker"
    product = "Docker engine"
    # AppArmor's profile of the engine forbids mounts, whatever the rights.
    security: ClassVar[tuple[str, ...]] = ("no-new-privileges", "apparmor=unconfined")
    folders: ClassVar[tuple[str, ...]] = (WORK, *FOLDERS)
    empty = "ro,size=4096,nr_inodes=2"
    """What the folders of memory are; each user gets new ones on top of these."""
    network = "bridge"
    counted = True
    """Whether its control groups bound memory, processes and CPU time."""
    isolates: ClassVar = {
        "files": "the image's, read-only; /sandbox, /tmp and /dev/shm in memory, bounded",
        "processes": "a namespace, new for each user, and a control group; all are killed after each run",
        "network": "a namespace of its own without interfaces, new for each user, unless network = true",
        "memory": "a control group, swap included; looked at every 10 ms besides",
        "cpu": "a control group; CPU seconds looked at every 10 ms, and RLIMIT_CPU",
        "privileges": "an unprivileged user, another each time; no capabilities, no-new-privileges",
        "system calls": "Docker's default filter and agentrl's",
    }

    def __init__(self, on_progress: Callable[[str], None] | None = None) -> None:
        self._on_progress = on_progress or (lambda line: print(line, file=sys.stderr, flush=True))

    async def holes(self) -> list[str]:
        """Return what a program can do here that it should not, in sentences; empty when nothing is known.

        Raises:
            SandboxError: The Docker SDK is not installed, or the engine does not answer or refuses.
        """
        return _holes(await self._call(await in_thread(self._engine), lambda client: client.info()))

    async def prepare(self, spec: SandboxSpec) -> None:
        """Fetch or build the image where it is missing, and remove containers that nobody uses any more.

        Raises:
            SandboxError: The engine does not answer, did not get the image, or is elsewhere and does not have this machine's folders.
        """
        engine = await in_thread(self._engine)
        await self._call(engine, lambda client: self._check(client, engine, spec))
        await self._call(engine, lambda client: have_image(client, spec.image, self._on_progress))

    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[AttachedLink]:
        """Yield a new container, once those that an engine's failure has left over are removed.

        Raises:
            SandboxError: The engine does not answer or refuses, or cannot do what `spec` asks for.
        """
        # Found once: where the choice of the engine changes meanwhile, a container ends on the one that it was made on.
        engine = await in_thread(self._engine)
        await self._call(engine, lambda client: self._check(client, engine, spec))
        name = f"agentrl-{uuid.uuid4().hex[:12]}"
        _in_use.add(name)
        try:
            stream = await self._call(engine, lambda client: self._start(client, engine, name, spec, core))
            nproc = None if self.counted else spec.limits.processes
            link = AttachedLink(stream, WORK, sandbox_environment(WORK, PATH), nproc)
            try:
                yield link
            finally:
                stream.close()
        finally:
            # What cannot be removed now, by an engine that restarts, is found by its label at the next start.
            _in_use.discard(name)
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                await self._call(engine, lambda client: _remove(client, name))

    def _engine(self) -> Engine:
        return engine_address()

    def _check(self, client: DockerClient, engine: Engine, spec: SandboxSpec) -> None:
        """Remove what is left over, and check that the engine can do what `spec` asks for.

        Raises:
            SandboxError: It cannot.
        """
        if spec.folders and not engine.is_here:
            (inside, here), *_ = spec.folders
            raise SandboxError(
                f"folders shows {here!r} at {inside!r}, and the engine at {engine} has no folder of this machine; put it into the image"
            )
        remove_left_over(client, engine.is_here)

    def _bounds(self, client: DockerClient, engine: Engine, spec: SandboxSpec, core: int | None) -> dict[str, Any]:
        """Return what of a container's HostConfig a control group holds."""
        memory = memory_of_a_sandbox(spec.limits)
        pinned = ""
        if core is not None and spec.cpus <= 1 and engine.is_here:  # a pool does not know the cores of another machine
            pinned = str(core % cores_of(client, engine))
        return {
            "CpusetCpus": pinned,
            "Memory": memory,
            "MemorySwap": memory,
            # Version 1 of control groups counts buffers of TCP apart; version 2 knows no such limit.
            "KernelMemoryTCP": memory,
            "NanoCpus": int(spec.cpus * 1e9),
            "PidsLimit": spec.limits.processes + OWN_PROCESSES,
        }

    def _command(self, client: DockerClient, engine: Engine, spec: SandboxSpec, core: int | None) -> list[str]:
        return ["python3", *init_arguments(spec, own_python=False)]

    def _start(
        self, client: DockerClient, engine: Engine, name: str, spec: SandboxSpec, core: int | None
    ) -> socket.socket:
        created = client.api.create_container(
            spec.image,
            command=self._command(client, engine, spec, core),
            entrypoint=[],
            environment={"PATH": PATH, "LANG": "C.UTF-8"},
            host_config={**self._host_config(client, spec), **self._bounds(client, engine, spec, core)},
            labels={OWNER_LABEL: owner()},
            name=name,
            stdin_open=True,
            stop_signal="SIGKILL",
            user="0:0",
            working_dir=WORK,
        )
        stream = attach(client, created["Id"])
        try:
            client.api.start(created["Id"])
        except BaseException:
            stream.close()
            raise
        return stream

    def _host_config(self, client: DockerClient, spec: SandboxSpec) -> dict[str, Any]:
        import docker.types

        config: dict[str, Any] = client.api.create_host_config(
            auto_remove=True,
            cap_add=[right.removeprefix("CAP_") for right in PRISTINE_RIGHTS],
            cap_drop=["ALL"],
            ipc_mode="private",
            log_config=docker.types.LogConfig(type="none"),
            mounts=[
                docker.types.Mount(inside, here, type="bind", read_only=True, propagation="rprivate")
                for inside, here in spec.folders
            ],
            network_mode=self.network if spec.network else "none",
            read_only=True,
            runtime=spec.runtime,
            security_opt=list(self.security),
            tmpfs=dict.fromkeys(self.folders, self.empty),
            ulimits=[docker.types.Ulimit(name="core", soft=0, hard=0)],
        )
        return config

    async def _call(self, engine: Engine, function: Callable[[DockerClient], T]) -> T:
        """Call the SDK in a thread, with a client of its own: it shares none between threads, and survives the engine.

        The SDK's time-outs bound it.

        Raises:
            SandboxError: The Docker SDK is not installed, or the engine does not answer or refuses.
        """

        def call() -> T:
            with sdk_errors(f"the {self.product}"), closing(connect(engine)) as client:
                return function(client)

        return await in_thread(call)


@dataclass
class AttachedLink:
    """The standard streams of a container, as the engine multiplexes them over one connection."""

    stream: socket.socket
    work: str
    env: dict[str, str]
    nproc: int | None = None
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
            except BlockingIOError:
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
            except BlockingIOError:
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
    if str(engine.get("CgroupVersion")) == "1" and not engine.get("KernelMemoryTCP", True):
        found.append("buffers of TCP are not counted: control groups of version 1 without kernel memory")
    if not any("name=seccomp" in option for option in engine.get("SecurityOptions") or ()):
        found.append("the engine has no filter of system calls: agentrl's is alone")
    return found


def cores_of(client: DockerClient, engine: Engine) -> int:
    """Return how many cores an engine has; it is asked once."""
    name = str(engine)
    if name not in _cores:
        _cores[name] = client.info()["NCPU"]
    return _cores[name]


def remove_left_over(client: DockerClient, engine_is_here: bool) -> None:
    """Remove the containers of processes that are no longer there, and those of this one that no sandbox has."""
    import docker.errors

    mine = owner()
    for container in client.api.containers(all=True, filters={"label": OWNER_LABEL}):
        whose, names = container["Labels"][OWNER_LABEL], [name.removeprefix("/") for name in container["Names"] or ()]
        if is_dead(whose, same_boot=not engine_is_here) or (whose == mine and _in_use.isdisjoint(names)):
            with suppress(docker.errors.APIError):  # the engine may be removing it already
                client.api.remove_container(container["Id"], force=True, v=True)


def have_image(client: DockerClient, image: str, on_progress: Callable[[str], None]) -> None:
    """Fetch an image where it is missing, or build it if it is ours.

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


def _remove(client: DockerClient, name: str) -> None:
    import docker.errors

    try:
        client.api.remove_container(name, force=True, v=True)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):  # gone, or going
            raise
