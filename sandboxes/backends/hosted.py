"""Sandboxes of a hosted service, as a plug-in brings them: `start(spec)`, then `run`, `read`, `write` and `close`.

    Sandbox ── frames ──► HostedLink ── run, read, write ──► the service's sandbox

The link does what the first process does in a sandbox of agentrl's own. A reset closes the service's sandbox and starts another. A program
cannot be talked to while it runs, so `trust = "apart"`, sessions and relays need another backend.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.condition import Condition
from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.backends.start_arguments import PATH, program_arguments, sandbox_environment
from agentrl.sandboxes.inside.inbox import frame, take_frames
from agentrl.sandboxes.seams import MB, WORK, ExecResult, Limits, SandboxSpec

EMPTY = 'find "$0" /tmp -mindepth 1 -delete 2>/dev/null; mkdir -p "$0"'
"""Empties the user's folder, which is its argument."""


class HostedSandbox(Protocol):
    """One sandbox of a service. Each method raises SandboxLostError where the sandbox is gone."""

    async def run(
        self, argv: Sequence[str], *, stdin: bytes, env: Mapping[str, str], cwd: str, limits: Limits
    ) -> ExecResult:
        """Run a command to its end, and kill it at its limits: `timeout_s`, and those others that the service can hold."""
        ...

    async def read(self, path: str) -> bytes:
        """Return a file.

        Raises:
            SandboxError: There is none.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, and the folders above it."""
        ...

    async def close(self) -> None:
        """End the sandbox. It may be gone already."""
        ...


class HostedService(Protocol):
    """A source of hosted sandboxes: name a class or function that makes one in the entry point."""

    name: str

    async def start(self, spec: SandboxSpec) -> HostedSandbox:
        """Return a new sandbox with an empty `/sandbox` and a python3 of 3.10 or later.

        Raises:
            SandboxError: None can be had; it names the remedy.
        """
        ...


class Hosted:
    """The backend on a service."""

    def __init__(self, service: HostedService) -> None:
        self.name = service.name
        self._service = service

    async def prepare(self, spec: SandboxSpec) -> None:
        """Do nothing: the service is asked for sandboxes alone."""

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[HostedLink]:
        """Yield a new sandbox of the service."""
        async with background_tasks() as tasks:
            link = HostedLink(tasks, self._service, spec, await self._service.start(spec))
            try:
                yield link
            finally:
                with anyio.CancelScope(shield=True), suppress(SandboxError):
                    await link.sandbox.close()


class HostedLink:
    """Answers the frames of a `Sandbox` by a sandbox of a service."""

    work = WORK
    nproc = None

    def __init__(self, tasks: TaskGroup, service: HostedService, spec: SandboxSpec, sandbox: HostedSandbox) -> None:
        self.env = sandbox_environment(WORK, PATH)
        self.sandbox = sandbox
        self._tasks = tasks
        self._service = service
        self._spec = spec
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._turn = anyio.Lock()
        self._answers: deque[bytes | SandboxLostError] = deque([frame(b"r", 0, b"")])
        self._changed = Condition()

    async def send(self, data: bytes) -> None:
        """Take frames, each of which is answered in a task of its own, in order."""
        for kind, number, payload in take_frames(bytearray(data)):
            if kind == b"K" and number in self._scopes:
                self._scopes[number].cancel()
            elif kind not in b"IEK":
                self._scopes[number] = anyio.CancelScope()
                self._tasks.start_soon(self._answer, kind, number, payload)

    async def receive(self) -> bytes:
        """Return an answer.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        await self._changed.wait_for(lambda: bool(self._answers))
        answer = self._answers.popleft()
        if isinstance(answer, SandboxLostError):
            raise answer
        return answer

    async def _answer(self, kind: bytes, number: int, payload: bytes) -> None:
        answer: bytes | SandboxLostError = frame(b"x", number, b'{"end_reason": "killed", "duration_s": 0.0}')
        try:
            with self._scopes[number]:
                async with self._turn:
                    head, _, data = payload.partition(b"\n")
                    if kind == b"S":
                        answer = await self._run(number, json.loads(head), data)
                    else:
                        request = json.loads(head) if head else {}
                        answer = frame(b"a", number, await self._do(kind, request, data))
        except SandboxLostError as error:
            answer = error
        except SandboxError as error:
            answer = frame(b"f", number, str(error).encode())
        del self._scopes[number]
        self._answers.append(answer)
        self._changed.notify_all()

    async def _do(self, kind: bytes, request: dict[str, Any], data: bytes) -> bytes:
        if kind == b"W":
            await self.sandbox.write(_under_work(request["path"]), data)
            if request["mode"] != 0o644:
                await self._command("chmod", f"{request['mode']:o}", _under_work(request["path"]))
        elif kind == b"R":
            content = await self.sandbox.read(_under_work(request["path"]))
            if len(content) > request["max_bytes"]:
                raise SandboxError(f"{len(content)} bytes, more than max_bytes = {request['max_bytes']}")
            return content
        elif kind == b"Z":
            await self.sandbox.close()
            self.sandbox = await self._service.start(self._spec)
        else:
            await self._command("sh", "-c", EMPTY, WORK)
        return b""

    async def _run(self, number: int, request: dict[str, Any], data: bytes) -> bytes:
        if request["interactive"]:
            raise SandboxLostError(
                f"{self._service.name} runs programs to their end, and cannot talk to one; use docker"
            )
        if request["only_files"] is not None:
            await self._command("sh", "-c", EMPTY, WORK)
        for path, length in request["only_files"] or ():
            await self.sandbox.write(_under_work(path), data[:length])
            data = data[length:]
        wanted = request["limits"]
        limits = self._spec.limits.but(
            timeout_s=wanted["timeout_s"],
            cpu_s=wanted["cpu_s"],
            memory_mb=wanted["memory_bytes"] // MB,
            output_mb=wanted["output_bytes"] / MB,
        )
        argv = request.get("argv") or ["python3", *await in_thread(program_arguments, request)]
        done = await self.sandbox.run(argv, stdin=data, env=request["env"], cwd=request["cwd"], limits=limits)
        report = asdict(done)
        output = frame(b"o", number, report.pop("stdout")) + frame(b"e", number, report.pop("stderr"))
        return output + frame(b"x", number, json.dumps(report).encode())

    async def _command(self, *argv: str) -> None:
        done = await self.sandbox.run(argv, stdin=b"", env=self.env, cwd="/", limits=self._spec.limits)
        if not done.ok:
            raise SandboxError(
                f"{argv[0]} failed in a sandbox of {self._service.name}: {done.stderr[-500:].decode(errors='replace')}"
            )


def _under_work(path: str) -> str:
    return path if path.startswith("/") else f"{WORK}/{path}"
