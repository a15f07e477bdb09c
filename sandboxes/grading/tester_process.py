"""The process that runs test code, as the host sees it. The other end is `inside/forked_runs.py`."""

from __future__ import annotations

import secrets
from typing import Self

import anyio

from agentrl.sandboxes.grading.candidate_process import TEST_CODE_TIMEOUT_S
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import MB

TESTER = "from agentrl.sandboxes.inside.forked_runs import main; main()"
TEST_CODE_OUTPUT_MB = 64.0
"""For the process that runs test code. The candidate's share of its time has limits of its own."""
TESTER_GRACE_S = 2.0
"""How long after a verdict's deadline test code may still report what has become of its tests."""
READY_TIMEOUT_S = 1.0
"""How long after its end a run's process may take to be gone, before another is started."""
LONGEST_SIGN = 100
"""Bytes of the line that says so."""


class TesterProcess:
    """The process that runs test code in `sandbox`: started when it is needed, and again after a run that has left something behind.

    `deadline` is a time of the event loop's clock.
    """

    def __init__(self, sandbox: Sandbox, deadline: float) -> None:
        self._sandbox = sandbox
        self._deadline = deadline
        self._process: Process | None = None
        self._ends_at = 0.0
        """When its own time is over, by the event loop's clock."""
        self._secret = b""
        """What makes a line a job: a run may leave behind answers of the candidate's that it has not read."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.end()

    async def begin(self, job: bytes) -> Process:
        """Have a job run, in empty folders.

        Raises:
            SandboxError: The folders cannot be emptied.
            SandboxLostError: The sandbox is gone.
        """
        if self._process is None or not await self._is_ready(self._process):
            await self.end()
        await self._sandbox.clear()
        if self._process is None:
            timeout_s = self._run_s
            self._ends_at = anyio.current_time() + timeout_s
            limits = self._sandbox.spec.limits.but(timeout_s=timeout_s, output_mb=TEST_CODE_OUTPUT_MB)
            self._process = await self._sandbox.start_python(TESTER, limits=limits)
            self._secret = secrets.token_hex().encode()
            await self._process.send(self._secret + b"\n")
        await self._process.send(self._secret + job + b"\n")
        return self._process

    async def end(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            async with process:
                pass

    @property
    def _run_s(self) -> float:
        """Return the seconds that a run which begins now may take."""
        return min(TEST_CODE_TIMEOUT_S, max(0.0, self._deadline - anyio.current_time()) + TESTER_GRACE_S)

    async def _is_ready(self, process: Process) -> bool:
        """Return whether a process takes another job, for which what is left of its limits will do."""
        # Its limits are those of all its runs together. What the deadline leaves is the same for it as for a new one.
        if self._sandbox.spec.limits.cpu_s is not None or process.output_left_bytes < TEST_CODE_OUTPUT_MB * MB / 2:
            return False
        if self._ends_at - anyio.current_time() < self._run_s - READY_TIMEOUT_S:
            return False
        with anyio.move_on_after(READY_TIMEOUT_S):
            try:
                return (await process.read_line(LONGEST_SIGN) or b"").startswith(b"g")
            except LongLineError:
                pass
        return False
