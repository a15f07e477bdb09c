"""A first process that is a child of ours, reached over its pipes; and the backend that has no more than that, for tests of agentrl on trusted programs."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio.abc import Process

from agentrl.errors import SandboxError, SandboxLostError, error_line
from agentrl.sandboxes.backends.start_arguments import init_arguments, sandbox_environment
from agentrl.sandboxes.linked_sandbox import LinkedSandbox
from agentrl.sandboxes.sandbox import Sandbox, SandboxSpec
from agentrl.system.child_process import kill_process, start_process
from agentrl.system.files import scratch_directory

END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ProcessLink:
    """A link over the standard streams of a process of this machine."""

    process: Process

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The process has ended; it says what that said last.
        """
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise SandboxLostError(await self._last_words()) from None

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: The process has ended; it says what that said last.
        """
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.receive(1 << 18)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise SandboxLostError(await self._last_words()) from None

    async def _last_words(self) -> str:
        assert self.process.stderr is not None
        said = b""
        with anyio.move_on_after(1):
            try:
                while len(said) < 4096:
                    said += await self.process.stderr.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.process.wait()
        line = error_line(said.decode(errors="replace"))
        return f"its first process ended with code {self.process.returncode}" + (f": {line}" if line else "")


@asynccontextmanager
async def process_link(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[ProcessLink]:
    """Start a first process, yield the link to it, and kill it at the end of the context.

    Args:
        command: What starts it: a program, then `init_arguments()`.
        env: Its variables.

    Raises:
        SandboxError: It cannot be started.
    """
    try:
        process = await start_process(command, stderr=subprocess.PIPE, env=dict(env))
    except OSError as error:
        raise SandboxError(f"cannot start {command[0]}: {error}") from error
    try:
        yield ProcessLink(process)
    finally:
        with anyio.move_on_after(END_TIMEOUT_S, shield=True):
            kill_process(process)
            await process.wait()
            with suppress(anyio.BrokenResourceError, OSError):  # what it never read
                await process.aclose()


class NoIsolation:
    """The backend that is none: a program can read, change and delete all that you can, and reach the network."""

    name = "UNSAFE_no_isolation"

    async def prepare(self, spec: SandboxSpec) -> None:
        """Warn that nothing is isolated."""
        warnings.warn("`sandbox.backend` = UNSAFE_no_isolation: programs run as you, without isolation", stacklevel=2)

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Yield a first process in a temporary folder."""
        async with scratch_directory("agentrl-sandbox-") as folder:
            work = str(folder)
            command = [sys.executable, *init_arguments(counted=False, folders=[work])]
            env = sandbox_environment(work, os.environ.get("PATH", os.defpath))
            async with (
                process_link(command, env) as link,
                LinkedSandbox(link, spec, env=env, work=work).open() as sandbox,
            ):
                yield sandbox
