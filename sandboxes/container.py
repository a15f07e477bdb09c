"""A container for an agent: the task's own image as its author meant it, with its user and a writable root.

    open_container(spec) ─► Container: run, start, read, write ─► commit() ─► an image of its state ─► open_container(...): its tests
          └─ both carry a label with this process; what a dead process left is removed at the next start

The `docker` package reaches the engine, here or elsewhere, Podman's socket too. A program runs by the engine's exec; a thread waits for its output.
"""

from __future__ import annotations

import io
import math
import secrets
import socket
import sys
import tarfile
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.backends.docker_connection import (
    call_engine,
    connect,
    engine_address,
    own_client,
    remove_container,
    remove_image,
    remove_left_over,
    with_own_client,
)
from agentrl.sandboxes.backends.docker_engine import have_image
from agentrl.sandboxes.container_engine import ContainerSpec as ContainerSpec
from agentrl.sandboxes.container_engine import create_container
from agentrl.sandboxes.seams import DEFAULT_IMAGE, MB, EndReason, ExecResult

if TYPE_CHECKING:
    from docker import DockerClient

KILL_S = 10.0
POLL_S = 0.02
SURVIVED_S = 0.5
MAX_FILE_BYTES = 64 * MB
STDOUT = 1
KILLED, NOT_STARTED = 137, 126
_KILL = """for _ in 1 2 3 4 5; do
    found=$(grep -ls "$0" /proc/[0-9]*/environ) || exit 0
    for file in $found; do id=${file#/proc/}; kill -9 "${id%/environ}"; done
done"""
"""Ends every process that has a mark in its environment."""
_MARK = "AGENTRL_PROGRAM"
_readers = anyio.CapacityLimiter(math.inf)
"""Of the threads that wait for output: one a program, and programs are bounded by what opens containers."""


@asynccontextmanager
async def open_container(spec: ContainerSpec) -> AsyncIterator[Container]:
    """Yield a running container, which is removed at the end of the context.

    Raises:
        SandboxError: The engine does not answer, has no such image, or refuses.
        SandboxLostError: The image's ENTRYPOINT ended at once.
    """
    image = spec.image or DEFAULT_IMAGE
    engine = await call_engine(engine_address)
    client: DockerClient = await call_engine(connect, engine)
    created = ""
    try:
        await call_engine(remove_left_over, client, engine)
        await call_engine(have_image, client, image, lambda line: print(line, file=sys.stderr, flush=True))
        created = await call_engine(create_container, client, image, spec)
        await call_engine(client.api.start, created)
        container = Container(client, created, replace(spec, image=image))
        await container.check_alive()
        yield container
    finally:
        with anyio.CancelScope(shield=True):
            if created:
                await call_engine(remove_container, client, created)
            await in_thread(client.close)


@dataclass(frozen=True)
class Container:
    """A running container. Paths are absolute, or relative to its working folder where a program runs."""

    client: DockerClient
    id: str
    spec: ContainerSpec

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        output_mb: float = 1.0,
    ) -> ExecResult:
        """Run a program to its end, or until its time is up: then all that it started is killed. Of each stream the end is kept.

        Raises:
            SandboxLostError: The container has ended.
        """
        if stdin:  # the length is the end: a connection by TLS or ssh cannot be closed in one direction
            argv = ["sh", "-c", 'head -c "$0" | "$@"', str(len(stdin)), *argv]
        outputs = {True: bytearray(), False: bytearray()}
        started, code = anyio.current_time(), None
        async with self._exec(argv, env, cwd, user, stdin=bool(stdin)) as process:
            try:
                with anyio.move_on_after(timeout_s):
                    async with anyio.create_task_group() as sending:
                        if stdin:
                            sending.start_soon(_send, process, stdin)
                        while (part := await process.receive()) is not None:
                            kept = outputs[part[0] == STDOUT]
                            kept += part[1]
                            del kept[: -int(output_mb * MB)]
                        sending.cancel_scope.cancel()
                    code = await process.exit_code()
            finally:
                if code is None:
                    with anyio.CancelScope(shield=True):
                        await process.kill()
        return ExecResult(
            end_reason=EndReason.TIMEOUT if code is None else EndReason.EXIT,
            exit_code=code,
            stdout=bytes(outputs[True]),
            stderr=bytes(outputs[False]),
            duration_s=anyio.current_time() - started,
        )

    @asynccontextmanager
    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> AsyncIterator[ContainerProcess]:
        """Yield a started program. It ends with the context, and so does all that it started.

        Raises:
            SandboxLostError: The container has ended.
        """
        async with self._exec(argv, env, cwd, None, stdin=True) as process:
            try:
                yield process
            finally:
                with anyio.CancelScope(shield=True), suppress(SandboxLostError):
                    await process.kill()

    async def read(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file.

        Raises:
            SandboxError: There is no such file, or it is larger than `max_bytes`.
            SandboxLostError: The container has ended.
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
            SandboxLostError: The container has ended.
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
            SandboxLostError: The container has ended.
        """

        def get() -> bytes:
            # The engine holds the container until the response is closed.
            with own_client() as client:
                data = bytearray()
                for chunk in client.api.get_archive(self.id, path)[0]:
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
            SandboxLostError: The container has ended.
        """
        await self._call(self.client.api.put_archive, self.id, folder, archive)

    async def diff(self) -> dict[str, str]:
        """Return the paths that differ from the image: "changed", "added" or "deleted"."""
        found = await self._call(self.client.api.diff, self.id)
        return {one["Path"]: ("changed", "added", "deleted")[one["Kind"]] for one in found or ()}

    @asynccontextmanager
    async def commit(self) -> AsyncIterator[str]:
        """Yield an image of the container's state, its files without its processes. It is removed at the end of the context.

        Raises:
            SandboxLostError: The container has ended.
        """
        await self.check_alive()
        image: str = (await self._call(self.client.api.commit, self.id))["Id"]
        try:
            yield image
        finally:
            with anyio.CancelScope(shield=True):
                await with_own_client(None, remove_image, image)  # the container's is closed by now

    async def check_alive(self) -> None:
        """Check that the container runs.

        Raises:
            SandboxLostError: It has ended.
        """
        try:
            state = (await call_engine(self.client.api.inspect_container, self.id))["State"]
        except SandboxError as error:
            raise SandboxLostError(f"the container of {self.spec.image} is lost: {error}") from error
        if not state["Running"]:
            why = "out of memory" if state.get("OOMKilled") else f"exit code {state.get('ExitCode')}"
            raise SandboxLostError(
                f"the container of {self.spec.image} has ended ({why}); if at once: its ENTRYPOINT must run the command that it is given"
            )

    @asynccontextmanager
    async def _exec(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, user: str | None, *, stdin: bool
    ) -> AsyncIterator[ContainerProcess]:
        mark = secrets.token_hex(16)

        def begin() -> tuple[str, Any]:
            variables = {**(env or {}), _MARK: mark}
            made: str = self.client.api.exec_create(
                self.id, list(argv), stdin=stdin, user=user or "", environment=variables, workdir=cwd
            )["Id"]
            return made, self.client.api.exec_start(made, socket=True)

        made, stream = await self._call(begin)
        # The package reads past what came with the head of the response: the response's own reader has it.
        reader = stream._response.raw._fp.fp
        sender = getattr(stream, "_sock", stream)
        sender.settimeout(None)
        try:
            yield ContainerProcess(self, made, mark, user, sender, reader)
        finally:
            with suppress(OSError):
                sender.shutdown(socket.SHUT_RDWR)  # a thread that waits for output finds its end
            stream._response.close()

    async def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return await call_engine(function, *arguments)
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
    sender: Any
    reader: Any
    _lines: deque[bytes] = field(default_factory=deque)
    _line: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Write to its standard input. What has ended takes nothing.

        Raises:
            SandboxLostError: The container has ended.
        """
        try:
            await anyio.to_thread.run_sync(self.sender.sendall, data, abandon_on_cancel=True, limiter=_readers)
        except OSError:
            await self.container.check_alive()

    async def receive(self) -> tuple[int, bytes] | None:
        """Return some of its output and its stream, 1 or 2; None at the end."""

        def frame() -> tuple[int, bytes] | None:
            with suppress(OSError, ValueError):
                head = self.reader.read(8)
                if len(head) == 8:
                    return head[0], self.reader.read(int.from_bytes(head[4:], "big"))
            return None

        return await anyio.to_thread.run_sync(frame, abandon_on_cancel=True, limiter=_readers)

    async def read_line(self) -> bytes | None:
        """Return the next line of its standard output; None at the end.

        Raises:
            SandboxLostError: The container has ended, or the line has no end.
        """
        while not self._lines:
            part = await self.receive()
            if part is None:
                await self._check_survived()
                return None
            if part[0] == STDOUT:
                *whole, rest = part[1].split(b"\n")
                for line in whole:
                    self._lines.append(bytes(self._line) + line)
                    self._line.clear()
                self._line += rest
                if len(self._line) > MAX_FILE_BYTES:
                    raise SandboxLostError(f"a program printed a line of more than {MAX_FILE_BYTES} bytes")
        return self._lines.popleft()

    async def exit_code(self) -> int:
        """Return its exit code, once it has ended.

        Raises:
            SandboxLostError: The container has ended.
        """
        found = await self._inspect()
        while found["Running"]:  # the engine tells of no end
            await anyio.sleep(POLL_S)
            found = await self._inspect()
        if found["ExitCode"] in (None, KILLED, NOT_STARTED):
            await self._check_survived()
        return -1 if found["ExitCode"] is None else int(found["ExitCode"])

    async def kill(self) -> None:
        """Kill it with all that it started.

        Raises:
            SandboxLostError: The container has ended.
        """
        with anyio.move_on_after(KILL_S):
            async with self.container._exec(
                ["sh", "-c", _KILL, self.mark], None, "/", self.user, stdin=False
            ) as killer:
                while await killer.receive() is not None:
                    pass
            await self.exit_code()

    async def _check_survived(self) -> None:
        """Check that the container has not ended with the program, of which the engine tells a moment later."""
        with anyio.move_on_after(SURVIVED_S):
            while True:
                await self.container.check_alive()
                await anyio.sleep(POLL_S)

    async def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.container._call(self.container.client.api.exec_inspect, self.id)
        return found


async def _send(process: ContainerProcess, data: bytes) -> None:
    with suppress(SandboxLostError):  # who reads finds out too
        await process.send(data)
