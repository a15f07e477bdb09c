"""A program that runs in a sandbox, as the host sees it: what it prints, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.seams import EndReason, ExecResult, Limits

if TYPE_CHECKING:
    from agentrl.sandboxes.linked_sandbox import LinkedSandbox

REPORT_GRACE_S = 10.0
"""A run that is not reported this long after its limit has taken its sandbox with it."""


class LongLineError(SandboxError):
    """A program wrote a longer line than its reader takes."""


class Process:
    """A program that runs in a sandbox. Use `async with`: it is killed when the block is left."""

    def __init__(self, sandbox: LinkedSandbox, number: int, limits: Limits) -> None:
        self._sandbox = sandbox
        self._number = number
        self._given_up_at = anyio.current_time() + limits.timeout_s + REPORT_GRACE_S
        self._stdout = bytearray()
        self._searched = 0
        """So much of it has no end of a line."""
        self._stderr = bytearray()
        self._report: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._report is None and not self._sandbox.lost:
            deadline = anyio.current_time() + REPORT_GRACE_S
            with anyio.CancelScope(shield=True), suppress(SandboxLostError):
                await self._sandbox.send(b"K", self._number, b"", deadline)
                await self._sandbox.wait_until(lambda: self._report is not None, deadline)

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self._report is None

    async def send(self, data: bytes) -> None:
        """Write to its standard input."""
        await self._sandbox.send(b"I", self._number, data)

    async def kill(self) -> None:
        """Kill it and what it started."""
        await self._sandbox.send(b"K", self._number)

    async def read_line(self, max_bytes: int | None = None) -> bytes | None:
        """Return the next line of its standard output, with its end; None when it has ended and nothing is left.

        Raises:
            LongLineError: It has more than `max_bytes`.
            SandboxLostError: The sandbox is gone.
        """
        await self._until(lambda: self._has_line(max_bytes) or self._report is not None)
        end = self._stdout.find(b"\n", self._searched) + 1 or len(self._stdout)
        if max_bytes is not None and end > max_bytes:
            raise LongLineError(f"a line of more than {max_bytes} bytes")
        line = bytes(self._stdout[:end])
        del self._stdout[:end]
        self._searched = 0
        return line or None

    def _has_line(self, max_bytes: int | None) -> bool:
        # Each byte is looked at once: a program may write millions of them one at a time.
        if self._stdout.find(b"\n", self._searched) >= 0:
            return True
        self._searched = len(self._stdout)
        return max_bytes is not None and self._searched > max_bytes

    async def wait(self) -> ExecResult:
        """Return how it ended, with the output that nobody has read.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        await self._until(lambda: self._report is not None)
        report = dict(self._report or {})
        end_reason = EndReason(report.pop("end_reason"))
        return ExecResult(end_reason=end_reason, stdout=bytes(self._stdout), stderr=bytes(self._stderr), **report)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._sandbox.wait_until(condition, self._given_up_at)

    def take_output(self, kind: bytes, data: bytes) -> None:
        """Keep output. The sandbox's first process holds programs to their limit."""
        output = self._stdout if kind == b"o" else self._stderr
        output += data

    def end(self, report: dict[str, Any]) -> float:
        """Note how it has ended, and return how long it ran."""
        self._report = report
        return float(report["duration_s"])
