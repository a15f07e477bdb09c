"""Sandboxes of a hosted service, as a plug-in brings them: `start(spec)`, then `run`, `read`, `write` and `close`.

A reset closes the service's sandbox and starts another. A program cannot be talked to while it runs, so `trust = "apart"`, sessions and
relays need another backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

import anyio

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.backends.start_arguments import PATH, program_arguments, sandbox_environment
from agentrl.sandboxes.linked_sandbox import ANSWER_TIMEOUT_S, REPORT_GRACE_S, Process
from agentrl.sandboxes.sandbox import (
    MB,
    WORK,
    EndReason,
    ExecResult,
    Limits,
    RunOptions,
    Sandbox,
    SandboxSpec,
    as_bytes,
)
from agentrl.system.tasks import in_thread

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
    """A sandbox of a service, and another in its place after a reset."""

    def __init__(self, spec: SandboxSpec, service: HostedService, hosted: HostedSandbox) -> None:
        super().__init__(spec, env=sandbox_environment(WORK, PATH))
        self.hosted = hosted
        self._service = service

    @asynccontextmanager
    async def _asked(self, timeout_s: float = ANSWER_TIMEOUT_S) -> AsyncIterator[HostedSandbox]:
        """Yield the service's sandbox, which has to answer in time; one that is gone is lost here too."""
        self._check()
        try:
            with anyio.fail_after(timeout_s):
                yield self.hosted
        except TimeoutError as error:
            raise self.lose(f"{self._service.name} did not answer within {timeout_s:g} s") from error
        except SandboxLostError as error:
            raise self.lose(str(error)) from error

    async def _run(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> ExecResult:
        argv = program.get("argv") or ["python3", *await in_thread(program_arguments, program)]
        env, cwd = {**self.env, **options.get("env", {})}, options.get("cwd") or WORK
        files, stdin = options.get("only_files"), options.get("stdin") or b""
        async with self._asked(limits.timeout_s + REPORT_GRACE_S) as hosted:
            if files is not None:
                emptied = await hosted.run(
                    ["sh", "-c", EMPTY, WORK], stdin=b"", env=self.env, cwd="/", limits=self.spec.limits
                )
                if not emptied.ok:
                    raise SandboxError(
                        f"a sandbox of {self._service.name} cannot be emptied: {emptied.stderr[-500:].decode(errors='replace')}"
                    )
            for path, data in (files or {}).items():
                await hosted.write(_under_work(path), data)
            done = await hosted.run(argv, stdin=stdin, env=env, cwd=cwd, limits=limits)
        self.run_s += done.duration_s
        room = int(limits.output_mb * MB)
        if len(done.stdout) + len(done.stderr) <= room:
            return done
        stdout = done.stdout[:room]  # not every service holds programs to it
        stderr = done.stderr[: room - len(stdout)]
        return replace(done, end_reason=EndReason.OUTPUT_LIMIT, stdout=stdout, stderr=stderr)

    async def _start(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> Process:
        raise SandboxLostError(f"{self._service.name} runs programs to their end, and cannot talk to one; use docker")

    async def write(self, path: str, data: bytes | str) -> None:
        async with self._asked() as hosted:
            await hosted.write(_under_work(path), as_bytes(data))

    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        async with self._asked() as hosted:
            content = await hosted.read(_under_work(path))
        if len(content) > max_bytes:
            raise SandboxError(f"{len(content)} bytes, more than max_bytes = {max_bytes}")
        return content

    async def reset(self) -> None:
        async with self._asked() as hosted:
            await hosted.close()
            try:
                self.hosted = await self._service.start(self.spec)
            except SandboxError as error:
                raise self.lose(f"{self._service.name} starts no other: {error}") from error


def _under_work(path: str) -> str:
    return path if path.startswith("/") else f"{WORK}/{path}"
