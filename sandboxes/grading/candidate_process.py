"""The process that holds a candidate's code, as the host sees it: asked by test code, within its limits."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from agentrl.sandboxes.grading.statuses import DEADLINE_OVER, status_of
from agentrl.sandboxes.grading.verdict import Status
from agentrl.sandboxes.inside.answer_bounds import Bounds
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import EndReason, ExecResult, Limits

CANDIDATE = "from agentrl.sandboxes.inside.candidate import main; main()"
TEST_CODE_TIMEOUT_S = 600.0
ANSWERS_MB = 16
"""What a candidate may answer in all."""
MAX_ANSWER_BYTES = Bounds().length
"""Of one answer. On its way to the test code it is copied a few times."""
ENDED_TESTS = "it had the tests do what ended their process"


class CandidateProcess:
    """The candidate's process, started when it is needed, and again after it has ended."""

    def __init__(
        self,
        sandbox: Sandbox,
        source: str,
        module: str,
        limits: Limits,
        deadline: float,
        *,
        cpu_s: float | None,
        tells: bool = True,
    ) -> None:
        """`tells`: what the program prints, warns and logs comes with its answers."""
        self.failure: tuple[Status, str] | None = None
        """Why the process has ended, if it has."""
        self.exited = False
        """Whether it has ended by itself, and not by a limit or a signal."""
        self.spent_s = 0.0
        """How long the candidate has been asked for, in this test."""
        self.usage = ExecResult(end_reason=EndReason.KILLED)
        self._sandbox = sandbox
        self._load = json.dumps({"op": "load", "source": source, "module": module, "tells": tells}).encode()
        self._time_s = limits.timeout_s
        self._deadline = deadline
        output_mb = max(limits.output_mb, ANSWERS_MB)
        self._limits = Limits(
            **{**vars(limits), "timeout_s": TEST_CODE_TIMEOUT_S, "cpu_s": cpu_s, "output_mb": output_mb}
        )
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end()

    async def load(self) -> bytes | None:
        """Start the process and load the program; the answer, or None when there is none."""
        await self._end()
        self.failure, self.exited = None, False
        if anyio.current_time() >= self._deadline:
            self.failure = (Status.TIME_LIMIT, DEADLINE_OVER)
            return None
        self._process = await self._sandbox.start_python(CANDIDATE, limits=self._limits)
        return await self.ask(self._load)

    async def ask(self, request: bytes) -> bytes | None:
        """Return the answer to one request; None when the process has ended or the test's time is over, see `failure`."""
        if self.failure is not None or self._process is None:
            return None
        started = anyio.current_time()
        answer = None
        too_long = False
        with self._bound(started) as bound:
            await self._process.send(request + b"\n")
            try:
                answer = await self._process.read_line(MAX_ANSWER_BYTES)
            except LongLineError:
                too_long = True
        if self._spend(started, bound):
            return None
        if too_long:
            self.failure = (Status.OUTPUT_LIMIT, f"it answered more than {MAX_ANSWER_BYTES >> 20} MB at once")
        elif answer is None or not answer.endswith(b"\n"):
            self.usage = await self._process.wait()
            self.exited = self.usage.end_reason is EndReason.EXIT
            status, message = status_of(self.usage)
            self.failure = (Status.RUNTIME_ERROR, "it ended without an answer") if self.usage.ok else (status, message)
        else:
            return answer
        return None

    async def wait_for(self, line: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return the next line of the test code's, which does what the candidate has asked of it.

        That takes the candidate's time, and whatever becomes of it is the candidate's doing.

        None when there is none, see `failure`.
        """
        started = anyio.current_time()
        found = None
        with self._bound(started) as bound:
            try:
                found = await line()
            except LongLineError:
                self.failure = (Status.OUTPUT_LIMIT, "it had the tests answer more than it may answer itself")
        if not self._spend(started, bound) and found is None and self.failure is None:
            self.failure = (Status.RUNTIME_ERROR, ENDED_TESTS)
        return found

    def _bound(self, started: float) -> anyio.CancelScope:
        return anyio.CancelScope(deadline=min(started + self._time_s - self.spent_s, self._deadline))

    def _spend(self, started: float, bound: anyio.CancelScope) -> bool:
        """Count the time since `started`; whether it was too long."""
        self.spent_s += anyio.current_time() - started
        if bound.cancelled_caught:
            self.failure = (Status.TIME_LIMIT, DEADLINE_OVER if anyio.current_time() >= self._deadline else "")
        return bound.cancelled_caught

    async def _end(self) -> None:
        if self._process is not None:
            async with self._process:
                if self._process.running:
                    await self._process.kill()
                    self.usage = await self._process.wait()
            self._process = None
