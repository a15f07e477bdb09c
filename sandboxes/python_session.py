"""A Python interpreter in a sandbox that keeps its state from call to call, as a tool for a model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from agentrl.sandboxes.inside.program_calls import CALLS
from agentrl.sandboxes.linked_sandbox import Process
from agentrl.sandboxes.sandbox import EndReason, Sandbox
from agentrl.system import traces

JOB = {"source": "from agentrl.sandboxes.inside.python_repl import execute", "module": "session"}
LIFETIME_S = 24 * 3600.0
NOTE_CHARACTERS = 100
"""For the note that stands where the middle of a long output is left out."""
INTERRUPT_GRACE_S = 1.0
"""How long code may take to give in to an interrupt before its interpreter is replaced."""


@dataclass(frozen=True, kw_only=True)
class SessionResult:
    """The result of one piece of code. `text` is what to show a model."""

    output: str
    """What it printed, the value of a last expression, and the traceback of an exception."""
    raised: bool = False
    timed_out: bool = False
    state_lost: bool = False
    """Whether the interpreter had to be started anew."""

    @property
    def text(self) -> str:
        """The output, with a line for what the output does not say."""
        notes = ["[timed out]"] if self.timed_out else []
        if self.state_lost:
            notes.append("[the interpreter was restarted: variables are lost]")
        return "\n".join([*([self.output.rstrip("\n")] if self.output else []), *notes]) or "[no output]"


class PythonSession:
    """The interpreter. Open it with `python_session`."""

    def __init__(self, sandbox: Sandbox, max_characters: int) -> None:
        self._sandbox = sandbox
        self._max_characters = max_characters
        self._process: Process | None = None

    async def execute(self, code: str, timeout_s: float = 10.0) -> SessionResult:
        """Run code in the interpreter, which keeps what it defines.

        Code that runs longer than `timeout_s` is interrupted; if it resists, or takes the interpreter down, a new one starts.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        with traces.sandbox_run(self._sandbox.spec.image):
            return await self._execute(code, timeout_s)

    async def _execute(self, code: str, timeout_s: float) -> SessionResult:
        call = {"name": "execute", "args": [code, timeout_s, self._max_characters], "kwargs": {"dict": []}}
        requests: list[Any] = [call | {"value_only": True}]
        if self._process is None:
            # Its lifetime is the session's, and what counts against the output limit is what it sends in all.
            limits = self._sandbox.spec.limits.changed(timeout_s=LIFETIME_S, output_mb=1024)
            self._process = await self._sandbox.start_python(CALLS, limits=limits)
            requests.insert(0, JOB)
        process = self._process
        answer = None
        try:
            with anyio.move_on_after(timeout_s + INTERRUPT_GRACE_S):
                for request in requests:
                    answer = None  # that to the job is none to the code
                    await process.send(json.dumps(request).encode() + b"\n")
                    answer = await process.read_line()
        except BaseException:
            await self.close()  # cancelled in the middle, it would give this answer to the next code
            raise
        try:
            output, raised, timed_out = json.loads(answer or b"")["ok"]["tuple"]
            # Shortened already, with a note where; this bounds what a forged answer may hold.
            output = str(output)[: self._max_characters + NOTE_CHARACTERS]
            return SessionResult(output=output, raised=bool(raised), timed_out=bool(timed_out))
        except (ValueError, KeyError, TypeError):
            self._process = None
            return await _end(process, timed_out=answer is None and process.running)

    async def close(self) -> None:
        """End the interpreter."""
        if self._process is not None:
            async with self._process:
                self._process = None


async def _end(process: Process, *, timed_out: bool) -> SessionResult:
    if process.running:
        await process.kill()
    done = await process.wait()
    reasons = {EndReason.OUT_OF_MEMORY: "[out of memory]", EndReason.OUTPUT_LIMIT: "[too much output]"}
    ended = "" if timed_out else f"[the interpreter ended: exit code {done.exit_code}, signal {done.signal}]"
    return SessionResult(output=reasons.get(done.end_reason, ended), raised=True, timed_out=timed_out, state_lost=True)


@asynccontextmanager
async def python_session(sandbox: Sandbox, max_characters: int = 10_000) -> AsyncIterator[PythonSession]:
    """Yield a Python interpreter in `sandbox`, started with the first call and ended with the context.

    `max_characters` bounds the output of one call; the middle of a longer one is left out.
    """
    session = PythonSession(sandbox, max_characters)
    try:
        yield session
    finally:
        await session.close()
