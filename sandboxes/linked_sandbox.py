"""A sandbox whose first process is `inside/first_process.py`, at the other end of a link: requests and answers are frames."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, Self

import anyio
from anyio.abc import TaskStatus

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.inside.inbox import frame, take_frames
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
from agentrl.system.tasks import Condition, background_tasks

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
"""Bound of reading, writing and resetting."""
REPORT_GRACE_S = 10.0
"""A run that is not reported this long after its limit has taken its sandbox with it."""


class Link(Protocol):
    """Bytes to and from the first process of a sandbox."""

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        ...

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: There are no more; it says what the sandbox said last.
        """
        ...


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
        """Return how it ended, with the output that is still unread.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        await self._until(lambda: self._report is not None)
        report = dict(self._report or {})
        end_reason = EndReason(report.pop("end_reason"))
        return ExecResult(end_reason=end_reason, stdout=bytes(self._stdout), stderr=bytes(self._stderr), **report)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._sandbox.wait_until(condition, self._given_up_at)

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Take in output, which the sandbox's first process holds to its limit, or the end."""
        if kind == b"x":
            self._report = json.loads(payload)
            self._sandbox.run_s += self._report["duration_s"]
        else:
            output = self._stdout if kind == b"o" else self._stderr
            output += payload


class LinkedSandbox(Sandbox):
    """The sandbox. `nproc` is RLIMIT_NPROC of programs, where nothing better bounds their number."""

    def __init__(
        self, link: Link, spec: SandboxSpec, *, env: Mapping[str, str], work: str = WORK, nproc: int | None = None
    ) -> None:
        super().__init__(spec, env=env, work=work)
        self._changed = Condition()
        """Announced when something was received, or the sandbox is lost."""
        self._link = link
        self._nproc = nproc
        self._sending = anyio.Lock()
        self._processes: dict[int, Process] = {}
        self._answers: dict[int, tuple[bytes, bytes] | None] = {}
        self._number = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """Yield it once it is ready, for as long as the context lasts.

        Raises:
            SandboxError: It was not ready in time.
        """
        async with background_tasks() as tasks:
            with anyio.move_on_after(START_TIMEOUT_S) as bound:
                await tasks.start(self._serve)
            if bound.cancelled_caught:
                raise SandboxError(f"the sandbox was not ready within {START_TIMEOUT_S:g} s")
            yield self

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        """Take in what the sandbox says until it is lost. Reports started when the sandbox is ready.

        Raises:
            SandboxLostError: The sandbox is lost before it was ready.
        """
        received, ready = bytearray(), False
        try:
            while True:
                received += await self._link.receive()
                for kind, number, payload in take_frames(received):
                    if kind == b"r" and not ready:
                        ready = True
                        task_status.started()
                    self._receive(kind, number, payload)
        except SandboxLostError as error:
            self.lose(str(error))
            if not ready:
                raise
        finally:
            self.lost = self.lost or "its context has ended"
            self._changed.notify_all()

    def _receive(self, kind: bytes, number: int, payload: bytes) -> None:
        process = self._processes.get(number)
        if process is not None and kind == b"f":
            self.lose(f"it cannot start a program: {payload.decode(errors='replace')}")
        elif process is not None and kind in b"oex":
            process.receive(kind, payload)
            if not process.running:
                del self._processes[number]
        elif number in self._answers:
            self._answers[number] = (kind, payload)
        self._changed.notify_all()

    async def _run(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> ExecResult:
        async with await self._start(program, limits, options) as process:
            return await process.wait()

    async def _start(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> Process:
        files, stdin = options.get("only_files"), options.get("stdin")
        request = {
            **program,
            "only_files": None if files is None else [(path, len(data)) for path, data in files.items()],
            "interactive": stdin is None,
            "env": {**self.env, **options.get("env", {})},
            "cwd": options.get("cwd") or self.work,
            "limits": {**vars(limits), "nproc": self._nproc},
            "silence_s": options.get("silence_s") or limits.timeout_s,
        }
        self._number += 1
        process = self._processes[self._number] = Process(self, self._number, limits)
        payload = b"".join((json.dumps(request).encode(), b"\n", *(files or {}).values(), stdin or b""))
        await self.send(b"S", self._number, payload)
        return process

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file, and the folders above it."""
        await self._ask(b"W", json.dumps({"path": path}).encode() + b"\n" + as_bytes(data))

    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Read a regular file."""
        return await self._ask(b"R", json.dumps({"path": path, "max_bytes": max_bytes}).encode())

    async def reset(self) -> None:
        """Make the sandbox as new."""
        self._processes.clear()
        await self._ask(b"Z")

    async def _ask(self, kind: bytes, payload: bytes = b"") -> bytes:
        self._number += 1
        number = self._number
        self._answers[number] = None
        try:
            deadline = anyio.current_time() + ANSWER_TIMEOUT_S
            await self.send(kind, number, payload, deadline)
            await self.wait_until(lambda: self._answers[number] is not None, deadline)
        finally:
            answer = self._answers.pop(number)
        assert answer is not None
        if answer[0] == b"f":
            raise SandboxError(answer[1].decode(errors="replace"))
        return answer[1]

    async def wait_until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until what was received makes a condition true.

        Raises:
            SandboxLostError: The sandbox is gone, or the deadline is over.
        """
        with anyio.CancelScope(deadline=deadline) as bound:
            while not condition():
                self._check()
                await self._changed.wait()
        if bound.cancelled_caught:
            raise self.lose("its first process no longer answers")

    async def send(self, kind: bytes, number: int, payload: bytes = b"", deadline: float = math.inf) -> None:
        """Send a frame, within ANSWER_TIMEOUT_S.

        Raises:
            SandboxLostError: The sandbox is gone, or the deadline is over.
        """
        self._check()
        deadline = min(deadline, anyio.current_time() + ANSWER_TIMEOUT_S)
        # Half a frame would garble all that follow: once begun, it is sent whole.
        with anyio.CancelScope(shield=True, deadline=deadline) as bound:
            async with self._sending:
                try:
                    await self._link.send(frame(kind, number, payload))
                except SandboxLostError as error:
                    raise self.lose(str(error)) from error
        if bound.cancelled_caught:
            raise self.lose("it takes no input")

    def lose(self, why: str) -> SandboxLostError:
        """Give the sandbox up, and wake all who wait for it."""
        error = super().lose(why)
        self._changed.notify_all()
        return error
