"""A sandbox whose first process is `inside/first_process.py`, at the other end of a link: requests and answers are frames."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskStatus

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.inside.inbox import frame, take_frames
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.sandbox import RunOptions, Sandbox, as_bytes
from agentrl.sandboxes.seams import MB, WORK, ExecResult, Limits, Link, SandboxSpec
from agentrl.system.tasks import Condition, background_tasks

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
"""Bound of reading, writing and resetting."""


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
            if kind == b"x":
                self.run_s += process.end(json.loads(payload))
                del self._processes[number]
            else:
                process.take_output(kind, payload)
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
