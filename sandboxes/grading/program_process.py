"""The process that holds a program whose functions are called, as the host sees it: asked within the limits of a test."""

from __future__ import annotations

import json
from typing import Self

import anyio

from agentrl.sandboxes.grading.statuses import DEADLINE_OVER, status_of
from agentrl.sandboxes.grading.verdict import Status
from agentrl.sandboxes.inside.plain import MAX_BYTES
from agentrl.sandboxes.inside.remote_program import PROGRAMS
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import EndReason, ExecResult, Limits

CALLS = "from agentrl.sandboxes.inside.program_calls import main; main()"
LONGEST_PROCESS_S = 600.0
"""Each call is bounded by its test's time."""
ANSWERS_MB = 16
"""What a program may answer and print in all."""


class ProgramProcess:
    """The process of a program in an empty sandbox. `deadline` is a time of the event loop's clock."""

    def __init__(self, sandbox: Sandbox, source: str, module: str, limits: Limits, deadline: float) -> None:
        self.failure: tuple[Status, str] | None = None
        """Why the process has ended, if it has."""
        self.spent_s = 0.0
        """How long the program has been waited for, in this test."""
        self.usage = ExecResult(end_reason=EndReason.KILLED)
        self._sandbox = sandbox
        self._job = json.dumps({"source": source, "module": module}).encode() + b"\n"
        self._time_s = limits.timeout_s
        self._deadline = deadline
        self._limits = limits.but(timeout_s=LONGEST_PROCESS_S, output_mb=max(limits.output_mb, ANSWERS_MB))
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end()

    async def load(self) -> bytes:
        """Start the process anew, and return its answer to the program."""
        await self._end()
        self.failure, self.spent_s = None, 0.0
        self._process = await self._sandbox.start_python(CALLS, limits=self._limits)
        return await self.ask(self._job)

    async def ask(self, request: bytes) -> bytes:
        """Return the answer to one request, a line; where there is none, {"ended": [status, message]} of `failure`."""
        process = self._process
        if self.failure is None and process is not None:
            started = anyio.current_time()
            with anyio.CancelScope(deadline=min(started + self._time_s - self.spent_s, self._deadline)) as bound:
                try:
                    await process.send(request)
                    answer = await process.read_line(MAX_BYTES)
                    if answer is not None and answer.endswith(b"\n"):
                        return answer
                    self.usage = await process.wait()
                    ended_by_itself = Status.RUNTIME_ERROR, "the program has left before it answered"
                    self.failure = ended_by_itself if self.usage.ok else status_of(self.usage)
                except LongLineError:
                    self.failure = Status.OUTPUT_LIMIT, f"the program answers more than {MAX_BYTES >> 20} MB at once"
                finally:
                    self.spent_s += anyio.current_time() - started
            if bound.cancelled_caught:
                over = anyio.current_time() >= self._deadline
                self.failure = Status.TIME_LIMIT, DEADLINE_OVER if over else ""
        return json.dumps({"ended": self.failure}).encode() + b"\n"

    async def ask_for(self, request: bytes | None) -> bytes:
        """Return the answer to a request, or to being loaded, as test code reads it: the program cannot write what is the host's to say."""
        answer = await self.load() if request is None else await self.ask(request)
        return (PROGRAMS if self.failure is None else b"x") + answer

    async def _end(self) -> None:
        if self._process is not None:
            async with self._process as process:
                if process.running:
                    await process.kill()
                    self.usage = await process.wait()
            self._process = None
