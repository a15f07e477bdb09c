"""A container for an agent: the task's own image as its author meant it, with its user and a writable root.

    open_container(spec) ─► Container: run, start, read, write ─► commit() ─► an image of its state ─► open_container(...): its tests
          └─ both carry a label with this process; what a dead process left is removed at the next start

The `docker` package reaches the engine, here or elsewhere, Podman's socket too. A program runs by the engine's exec.
"""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from agentrl.errors import SandboxError, SandboxLostError, one_line
from agentrl.sandboxes.backends.docker_connection import CPU_PERIOD_US, STDOUT, DockerEngine, DockerStream, find_engine
from agentrl.sandboxes.backends.docker_images import have_image
from agentrl.sandboxes.backends.leftovers import LABEL, container_name, owner, remove_image, remove_left_over
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE, MB, EndReason, ExecResult
from agentrl.system import traces
from agentrl.system.tasks import background_tasks, in_thread

if TYPE_CHECKING:
    from docker import APIClient

START_S = 60.0
"""How long an image's ENTRYPOINT may take to run its command."""
KILL_S = 10.0
POLL_S = 0.02
SURVIVED_S = 0.5
"""An engine tells of a container's end so long after that of a program in it."""
MAX_FILE_BYTES = 64 * MB
PROCESSES = 4096
_WAIT = 'echo "$0"; while :; do sleep 3600 & wait $!; done'
"""The first process: it prints a mark, waits, and reaps what others leave."""
_KILL = """for _ in 1 2 3 4 5; do
    found=$(grep -ls "$0" /proc/[0-9]*/environ) || exit 0
    for file in $found; do id=${file#/proc/}; kill -9 "${id%/environ}"; done
done"""
"""Ends every process that has a mark in its environment."""
_MARK = "AGENTRL_PROGRAM"
_ENDS_WITH_THE_CONTAINER = (None, 126, 137)
"""Exit codes of a program that its container took with it: it is not started, or killed."""


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


@asynccontextmanager
async def open_container(spec: ContainerSpec) -> AsyncIterator[Container]:
    """Yield a running container, which is removed at the end of the context.

    Raises:
        SandboxError: The engine does not answer, has no such image or less memory, or refuses.
        SandboxLostError: The image's ENTRYPOINT ended, or did not run its command in time.
    """
    spec = replace(spec, image=spec.image or DEFAULT_IMAGE)
    engine = await in_thread(find_engine)
    await engine.call(remove_left_over, engine)
    await engine.call(have_image, spec.image)
    async with container_name(engine) as name:
        mark = secrets.token_hex(16)
        with closing(await engine.call(_start, name, spec, mark)) as output:
            await _wait_for_mark(mark.encode(), output, spec)
        yield Container(engine, name, spec)


async def _wait_for_mark(mark: bytes, output: DockerStream, spec: ContainerSpec) -> None:
    """Wait until the first process runs. The ENTRYPOINT may print anything before.

    Raises:
        SandboxLostError: The container has ended, or does not run it in time.
    """
    printed, how = b"", f"does not run its command within {START_S:g} s"
    with anyio.move_on_after(START_S):
        while (part := await output.receive_part()) is not None:
            printed = printed[-MB:] + part[1]
            if mark in printed:
                return
        how = "has ended before it ran its command"
    said = one_line(printed.decode(errors="replace")[-200:])
    raise SandboxLostError(
        f"the container of {spec.image} {how}: its ENTRYPOINT must run the command that it is given; it printed {said!r}"
    )


def _start(client: APIClient, name: str, spec: ContainerSpec, mark: str) -> DockerStream:
    """Start a container, and return its output from the first byte on.

    Raises:
        SandboxError: It is to have more memory than the engine's machine.
    """
    from docker.types import Mount, Ulimit

    if spec.memory_mb * MB > (there := client.info()["MemTotal"]):
        raise SandboxError(
            f"memory_mb = {spec.memory_mb} is more than the {there // MB} MB of the engine's machine; lower it, or name an engine with more in DOCKER_HOST"
        )
    host = client.create_host_config(
        cpu_period=CPU_PERIOD_US,
        cpu_quota=int(spec.cpus * CPU_PERIOD_US),
        mem_limit=spec.memory_mb * MB,
        memswap_limit=spec.memory_mb * MB,
        mounts=[Mount(inside, here, type="bind", read_only=True) for inside, here in spec.folders.items()],
        network_mode="bridge" if spec.network else "none",
        pids_limit=PROCESSES,
        ulimits=[Ulimit(name="fsize", soft=spec.disk_mb * MB, hard=spec.disk_mb * MB)] if spec.disk_mb else [],
    )
    client.create_container(
        spec.image,
        command=["sh", "-c", _WAIT, mark],
        environment=dict(spec.env),
        host_config=host,
        labels={LABEL: owner()},
        name=name,
        user=spec.user,
        working_dir=spec.workdir,
    )
    output = client.attach_socket(name, params={"stdout": 1, "stderr": 1, "stream": 1})
    client.start(name)
    return DockerStream(output)


@dataclass(frozen=True)
class Container:
    """A running container. Paths are absolute, or relative to its working folder where a program runs.

    Each method raises SandboxLostError where the container has ended.
    """

    engine: DockerEngine
    id: str
    spec: ContainerSpec

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        output_mb: float = 1.0,
    ) -> ExecResult:
        """Run a program to its end, or until its time is up: then all that it started is killed. Of each stream the end is kept."""
        if stdin:  # its length is its end: a connection by TLS cannot be closed in one direction
            argv = ["sh", "-c", 'head -c "$0" | "$@"', str(len(stdin)), *argv]
        outputs = {1: bytearray(), 2: bytearray()}
        started = anyio.current_time()
        with traces.sandbox_run(self.spec.image):
            async with self.start(argv, env=env, cwd=cwd, user=user, stdin=bool(stdin)) as process:
                with anyio.move_on_after(timeout_s):
                    async with background_tasks() as sending:
                        sending.start_soon(process.send, stdin)
                        while (part := await process.stream.receive_part()) is not None:
                            output = outputs[part[0]]
                            output += part[1]
                            del output[: -int(output_mb * MB)]
                    await process.wait()
                code = process.exit_code  # before it is killed
        if code is None:
            await self.check_alive()
        return ExecResult(
            end_reason=EndReason.TIMEOUT if code is None else EndReason.EXIT,
            exit_code=code,
            stdout=bytes(outputs[1]),
            stderr=bytes(outputs[2]),
            duration_s=anyio.current_time() - started,
        )

    @asynccontextmanager
    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = True,
    ) -> AsyncIterator[ContainerProcess]:
        """Yield a started program. Where its end was not waited for, it ends with the context, and so does all that it started."""
        mark = secrets.token_hex(16)

        def begin(client: APIClient) -> ContainerProcess:
            variables = {**(env or {}), _MARK: mark}
            made = client.exec_create(
                self.id, list(argv), stdin=stdin, user=user or "", environment=variables, workdir=cwd
            )["Id"]
            return ContainerProcess(self, made, mark, user, DockerStream(client.exec_start(made, socket=True)))

        process: ContainerProcess = await self._call(begin)
        with closing(process.stream):
            try:
                yield process
            finally:
                if process.exit_code is None:
                    with anyio.CancelScope(shield=True), suppress(SandboxLostError):
                        await process.kill()

    async def read(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file.

        Raises:
            SandboxError: There is no such file, or it is larger than `max_bytes`.
        """
        archive = await self.pack(path, max_bytes)

        def content() -> bytes:
            with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
                found = packed.next()
                file = packed.extractfile(found) if found is not None and found.isreg() else None
                if file is None:
                    raise SandboxError(f"{path} in the container is no file")
                return file.read()

        return await in_thread(content)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, which belongs to root, and make the folders above it.

        Raises:
            SandboxError: It cannot be written.
        """
        result = io.BytesIO()
        with tarfile.open(fileobj=result, mode="w") as packed:
            one = tarfile.TarInfo(path.lstrip("/"))
            one.size, one.mode = len(data), mode
            packed.addfile(one, io.BytesIO(data))
        await self.unpack(result.getvalue(), "/")

    async def pack(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file or a folder as a tar archive, whose first member has its name.

        Raises:
            SandboxError: There is none, or it is larger than `max_bytes`.
        """

        def get(client: APIClient) -> bytes:
            data = bytearray()
            for chunk in client.get_archive(self.id, path)[0]:
                data += chunk
                if len(data) > max_bytes + MB:
                    raise SandboxError(f"{path} in the container has more than {max_bytes} bytes")
            return bytes(data)

        archive: bytes = await self._call(get)
        return archive

    async def unpack(self, archive: bytes, folder: str) -> None:
        """Unpack a tar archive in a folder that is there.

        Raises:
            SandboxError: It cannot be unpacked.
        """
        await self._call(lambda client: client.put_archive(self.id, folder, archive))

    async def diff(self) -> dict[str, str]:
        """Return the paths that differ from the image: "changed", "added" or "deleted"."""
        found = await self._call(lambda client: client.diff(self.id))
        return {one["Path"]: ("changed", "added", "deleted")[one["Kind"]] for one in found or ()}

    @asynccontextmanager
    async def commit(self) -> AsyncIterator[str]:
        """Yield an image of the container's state, its files without its processes. It is removed at the end of the context."""
        await self.check_alive()
        image: str = (await self._call(lambda client: client.commit(self.id)))["Id"]
        try:
            yield image
        finally:
            with anyio.CancelScope(shield=True):
                await self.engine.call(remove_image, image)

    async def check_alive(self) -> None:
        """Check that the container runs.

        Raises:
            SandboxLostError: It has ended.
        """
        try:
            state = (await self.engine.call(lambda client: client.inspect_container(self.id)))["State"]
        except SandboxError as error:
            raise SandboxLostError(f"the container of {self.spec.image} is lost: {error}") from error
        if not state["Running"]:
            starved = " after a program ran out of memory" * bool(state.get("OOMKilled"))  # which may be long ago
            why = f"exit code {state.get('ExitCode')}{starved}"
            raise SandboxLostError(f"the container of {self.spec.image} has ended ({why})")

    async def _call(self, function: Any) -> Any:
        try:
            return await self.engine.call(function)
        except SandboxError:
            await self.check_alive()
            raise


@dataclass
class ContainerProcess:
    """A program that runs in a container, and its streams."""

    container: Container
    id: str
    mark: str
    user: str | None
    stream: DockerStream
    exit_code: int | None = None
    """Of a program whose end was waited for."""
    _output: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Write to its standard input. What has ended takes nothing: who waits for its output finds out."""
        with suppress(SandboxLostError):
            await self.stream.send(data)

    async def read_line(self) -> bytes | None:
        """Return the next line of its standard output; None at the end.

        Raises:
            SandboxLostError: The container has ended, or the line has no end.
        """
        searched = 0
        while (end := self._output.find(b"\n", searched)) < 0:
            searched = len(self._output)
            if searched > MAX_FILE_BYTES:
                raise SandboxLostError(f"a program printed a line of more than {MAX_FILE_BYTES} bytes")
            part = await self.stream.receive_part()
            if part is None:
                await self._check_survived()
                return None
            if part[0] == STDOUT:
                self._output += part[1]
        line = bytes(self._output[:end])
        del self._output[: end + 1]
        return line

    async def wait(self) -> None:
        """Wait for its end, after that of its output.

        Raises:
            SandboxLostError: The container has ended.
        """
        while True:  # the engine tells of no end
            found = await self.container._call(lambda client: client.exec_inspect(self.id))
            if not found["Running"]:
                break
            await anyio.sleep(POLL_S)
        if found["ExitCode"] in _ENDS_WITH_THE_CONTAINER:
            await self._check_survived()
        self.exit_code = -1 if found["ExitCode"] is None else int(found["ExitCode"])

    async def kill(self) -> None:
        """Kill it with all that it started.

        Raises:
            SandboxLostError: The container has ended.
        """
        place, killer = self.container, ["sh", "-c", _KILL, self.mark]
        options = {"user": self.user or "", "workdir": "/"}
        await place._call(lambda client: client.exec_start(client.exec_create(place.id, killer, **options)["Id"]))
        with anyio.move_on_after(KILL_S):
            await self.wait()

    async def _check_survived(self) -> None:
        """Check that the container has not ended with the program."""
        with anyio.move_on_after(SURVIVED_S):
            while True:
                await self.container.check_alive()
                await anyio.sleep(POLL_S)
