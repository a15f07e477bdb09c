"""Sandboxes of a hosted service, as a plug-in brings them: `start(spec)`, then `run`, `read`, `write` and `close`.

A reset closes the service's sandbox and starts another. A program cannot be talked to while it runs, so `trust = "apart"`, sessions and
relays need another backend.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, Protocol

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.backends.start_arguments import PATH, program_arguments, sandbox_environment
from agentrl.sandboxes.process import REPORT_GRACE_S
from agentrl.sandboxes.sandbox import ANSWER_TIMEOUT_S, Sandbox
from agentrl.sandboxes.seams import MB, WORK, EndReason, ExecResult, Limits, SandboxSpec

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
    async def start(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Yield a new sandbox of the service."""
        sandbox = _Sandbox(spec, self._service, await self._service.start(spec))
        try:
            yield sandbox
        finally:
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                await sandbox.hosted.close()


class _Sandbox(Sandbox):
    """Does what a sandbox's first process does, by a sandbox of a service, in the task that asks for it."""

    def __init__(self, spec: SandboxSpec, service: HostedService, hosted: HostedSandbox) -> None:
        super().__init__(spec, env=sandbox_environment(WORK, PATH))
        self.hosted = hosted
        self._service = service

    async def _send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._check()
        if kind in b"IEK":
            return  # of a program, which has run to its end
        head, _, data = payload.partition(b"\n")
        request = json.loads(head) if head else {}
        timeout_s = request["limits"]["timeout_s"] + REPORT_GRACE_S if kind == b"S" else ANSWER_TIMEOUT_S
        try:
            with anyio.fail_after(timeout_s):
                if kind == b"S":
                    await self._run(number, request, data)
                else:
                    self._dispatch(b"a", number, await self._do(kind, request, data))
        except TimeoutError as error:
            raise self._lose(f"{self._service.name} did not answer within {timeout_s:g} s") from error
        except SandboxLostError as error:
            raise self._lose(str(error)) from error
        except SandboxError as error:
            self._dispatch(b"f", number, str(error).encode())

    async def _do(self, kind: bytes, request: dict[str, Any], data: bytes) -> bytes:
        if kind == b"W":
            await self.hosted.write(_under_work(request["path"]), data)
            if request["mode"] != 0o644:
                await self._command("chmod", f"{request['mode']:o}", _under_work(request["path"]))
        elif kind == b"R":
            content = await self.hosted.read(_under_work(request["path"]))
            if len(content) > request["max_bytes"]:
                raise SandboxError(f"{len(content)} bytes, more than max_bytes = {request['max_bytes']}")
            return content
        elif kind == b"Z":
            await self.hosted.close()
            self.hosted = await self._service.start(self.spec)
        else:
            await self._command("sh", "-c", EMPTY, WORK)
        return b""

    async def _run(self, number: int, request: dict[str, Any], data: bytes) -> None:
        if request["interactive"]:
            raise SandboxLostError(
                f"{self._service.name} runs programs to their end, and cannot talk to one; use docker"
            )
        if request["only_files"] is not None:
            await self._command("sh", "-c", EMPTY, WORK)
        for path, length in request["only_files"] or ():
            await self.hosted.write(_under_work(path), data[:length])
            data = data[length:]
        wanted = request["limits"]
        limits = self.spec.limits.but(
            timeout_s=wanted["timeout_s"],
            cpu_s=wanted["cpu_s"],
            memory_mb=wanted["memory_bytes"] // MB,
            output_mb=wanted["output_bytes"] / MB,
        )
        argv = request.get("argv") or ["python3", *await in_thread(program_arguments, request)]
        done = await self.hosted.run(argv, stdin=data, env=request["env"], cwd=request["cwd"], limits=limits)
        report, room = asdict(done), wanted["output_bytes"]
        for kind, name in ((b"o", "stdout"), (b"e", "stderr")):
            output = report.pop(name)
            self._dispatch(kind, number, output[:room])
            if len(output) > room:  # not every service holds programs to it
                report["end_reason"] = EndReason.OUTPUT_LIMIT
            room -= len(output[:room])
        self._dispatch(b"x", number, json.dumps(report).encode())

    async def _command(self, *argv: str) -> None:
        done = await self.hosted.run(argv, stdin=b"", env=self._env, cwd="/", limits=self.spec.limits)
        if not done.ok:
            raise SandboxError(
                f"{argv[0]} failed in a sandbox of {self._service.name}: {done.stderr[-500:].decode(errors='replace')}"
            )


def _under_work(path: str) -> str:
    return path if path.startswith("/") else f"{WORK}/{path}"
