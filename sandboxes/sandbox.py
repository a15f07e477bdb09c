"""A sandbox as the host sees it: run programs, talk to them, read and write files, reset. The other end is `inside/first_process.py`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskStatus

from agentrl.concurrency.condition import Condition
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.inside.inbox import HEADER, frame
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.seams import MB, ExecResult, Limits, Link, SandboxSpec

ANSWER_TIMEOUT_S = 60.0
"""Bound of reading, writing, packing and resetting."""
MAX_STDIN_BYTES = 64 * MB
MAX_PACKED_BYTES = 32 * MB
"""Of the files in a snapshot."""
MAX_FRAME_BYTES = 512 * MB
"""Of what a sandbox sends at once: the largest is a snapshot of its files."""


class Sandbox:
    r"""A locked-down place to run programs.

    Get one from `open_sandbox()`, a `SandboxPool` or `episode.sandbox()`.

        done = await sandbox.run(["python3", "-c", "print(6 * 7)"], timeout_s=2)
        assert done.ok and done.stdout == b"42\n"

    Files stay until `reset`. When the only running program ends, the processes that it left running are killed.
    """

    def __init__(self, link: Link, spec: SandboxSpec) -> None:
        self.spec = spec
        self.work = link.work
        """Where the user's files are, inside the sandbox."""
        self.lost: str | None = None
        """Why the sandbox is gone, when it is."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the sandbox is lost."""
        self.unheard = False
        """Whether its context has ended: no program's end will be reported."""
        self.runs = 0
        self.run_s = 0.0
        self._link = link
        self._processes: dict[int, Process] = {}
        self._answers: dict[int, tuple[bytes, bytes] | None] = {}
        self._changed = Condition()
        self._number = 0
        self._sending = anyio.Lock()

    # -- programs ------------------------------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        limits: Limits | None = None,
        only_files: Mapping[str, bytes] | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        Args:
            argv: The program and its arguments.
            stdin: Its whole input.
            timeout_s: Bound of its wall-clock time, in place of that of `limits`.
            env: Variables besides the sandbox's own.
            cwd: Where it runs; the user's folder where it is empty.
            limits: Its limits; by default the sandbox's.
            only_files: The writable folders are emptied and these files written first, as by `clear` and `write`, in the same message.

        Raises:
            SandboxLostError: The sandbox was lost with it.
            SandboxError: An input of more than 64 MB.
        """
        process = await self._start(_command(argv), stdin, timeout_s, env, cwd, limits, only_files)
        async with process:
            return await process.wait()

    async def run_python(
        self,
        script: str = "",
        *,
        code: str = "",
        args: Sequence[str] = (),
        stdin: bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        only_files: Mapping[str, bytes] | None = None,
    ) -> ExecResult:
        """Run a Python file of the sandbox, or `code`, to its end, in a process forked from an interpreter that is warm already.

        The same as `run(["python3", script, *args])`, without the 10 to 30 ms that an interpreter takes to start.
        """
        program = {"script": script or None, "code": code, "args": list(args)}
        process = await self._start(program, stdin, timeout_s, env, "", limits, only_files)
        async with process:
            return await process.wait()

    @asynccontextmanager
    async def python_runs(
        self, script: str, stdins: Sequence[bytes], *, limits: Limits, only_files: Mapping[str, bytes], within_s: float
    ) -> AsyncIterator[Sequence[Process]]:
        """Run a Python file once for each of `stdins`, as `run_python` does, one run after another.

        One message asks for all of them, and their results may come in one. A run that would begin when `within_s` seconds have passed is
        cut off at once. Those that have not ended are killed when the context is left.
        """
        program = {"script": script, "in_turn": True, "within_s": within_s}
        async with AsyncExitStack() as ends:
            processes, frames = [], []
            for number, stdin in enumerate(stdins, start=1):
                total_s = min(number * limits.timeout_s, within_s + limits.timeout_s)
                process, start = self._prepare(program, stdin, None, "", limits, only_files, total_s)
                processes.append(await ends.enter_async_context(process))
                frames.append(start)
            await self._send_frames(*frames)
            yield processes

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        limits: Limits | None = None,
    ) -> Process:
        """Start a command and go on. Without `stdin`, its input is what is sent to it."""
        return await self._start(_command(argv), stdin, timeout_s, env, cwd, limits)

    async def start_python(
        self, code: str, *, timeout_s: float | None = None, limits: Limits | None = None, framework: str | None = None
    ) -> Process:
        """Start Python `code` in a warm process, which has imported `framework`. It may import from `agentrl.sandboxes.inside`."""
        return await self._start({"code": code, "framework": framework}, None, timeout_s, None, "", limits)

    async def _start(
        self,
        program: dict[str, Any],
        stdin: bytes | None,
        timeout_s: float | None,
        env: Mapping[str, str] | None,
        cwd: str,
        limits: Limits | None,
        only_files: Mapping[str, bytes] | None = None,
    ) -> Process:
        check_argument("stdin", stdin, bytes | None)
        check_argument("env", env, Mapping[str, str] | None)
        check_argument("cwd", cwd, str)
        check_argument("limits", limits, Limits | None)
        limits = (limits or self.spec.limits).but(timeout_s=timeout_s)
        process, start = self._prepare(program, stdin, env, cwd, limits, only_files, limits.timeout_s)
        await self._send_frames(start)
        return process

    def _prepare(
        self,
        program: dict[str, Any],
        stdin: bytes | None,
        env: Mapping[str, str] | None,
        cwd: str,
        limits: Limits,
        only_files: Mapping[str, bytes] | None,
        total_s: float,
    ) -> tuple[Process, bytes]:
        """Return a process that ends within `total_s`, and the frame that asks for it.

        Raises:
            SandboxError: The input is too large.
            ConfigError: The limits are more than the sandbox's.
        """
        if stdin is not None and len(stdin) > MAX_STDIN_BYTES:
            raise SandboxError(
                f"stdin of {len(stdin)} bytes; at most {MAX_STDIN_BYTES}. Write it to a file of the sandbox"
            )
        limits.check_within(self.spec.limits)
        request = {
            **program,
            "only_files": None if only_files is None else [(path, len(data)) for path, data in only_files.items()],
            "interactive": stdin is None,
            "env": {**self._link.env, **(env or {})},
            "cwd": cwd or self.work,
            "limits": {
                "timeout_s": limits.timeout_s,
                "cpu_s": limits.cpu_s,
                "memory_bytes": limits.memory_mb * MB,
                "file_bytes": limits.file_mb * MB,
                "output_bytes": int(limits.output_mb * MB),
                "open_files": limits.open_files,
                "nproc": self._link.nproc,
            },
        }
        self._number += 1
        process = self._processes[self._number] = Process(self, self._number, limits, total_s)
        self.runs += 1
        payload = b"".join((json.dumps(request).encode(), b"\n", *(only_files or {}).values(), stdin or b""))
        return process, frame(b"S", self._number, payload)

    # -- files ---------------------------------------------------------------------------------------------------

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Write a file, and the folders above it; a relative path is under `work`."""
        check_argument("path", path, str)
        check_argument("data", data, str | bytes | bytearray)
        content = as_bytes(data) if isinstance(data, str) else data
        await self._ask(b"W", json.dumps({"path": path, "mode": mode}).encode() + b"\n" + content)

    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Read a regular file.

        Raises:
            SandboxError: It is missing or larger.
        """
        return await self._ask(b"R", json.dumps({"path": path, "max_bytes": max_bytes}).encode())

    async def snapshot(self) -> bytes:
        """Return everything under `work`, as a tar archive that `restore` takes."""
        return await self._ask(b"P", json.dumps({"max_bytes": MAX_PACKED_BYTES}).encode())

    async def restore(self, snapshot: bytes) -> None:
        """Empty the writable folders and put the files of a snapshot under `work`."""
        await self._ask(b"U", snapshot)

    async def clear(self) -> None:
        """Empty the writable folders.

        Raises:
            SandboxError: Something in them cannot be removed.
        """
        await self._ask(b"C")

    async def reset(self) -> None:
        """Make the sandbox as new: kill every process of its user, and empty the writable folders.

        Raises:
            SandboxError: It cannot be made as new.
            SandboxLostError: It is gone, or did not answer.
        """
        self._processes.clear()
        await self._ask(b"Z")

    # -- the wire ------------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Take in what the sandbox says until it is lost. Reports started when the sandbox is ready.

        Raises:
            SandboxLostError: The sandbox is lost before it was ready.
        """
        inbox, ready = bytearray(), False
        try:
            while True:
                inbox += await self._link.receive()
                while len(inbox) >= HEADER.size:
                    kind, number, length = HEADER.unpack_from(inbox)
                    if length > MAX_FRAME_BYTES:
                        raise SandboxLostError(f"it sent a frame of {length} bytes; at most {MAX_FRAME_BYTES} are read")
                    end = HEADER.size + length
                    if len(inbox) < end:
                        break
                    with memoryview(inbox) as view:
                        payload = bytes(view[HEADER.size : end])
                    del inbox[:end]
                    if kind == b"r" and not ready:
                        ready = True
                        task_status.started()
                    self._dispatch(kind, number, payload)
        except SandboxLostError as error:
            self._lose(str(error))
            if not ready:
                raise
        finally:
            self.unheard = True
            for process in self._processes.values():
                process._changed.notify_all()

    def _dispatch(self, kind: bytes, number: int, payload: bytes) -> None:
        process = self._processes.get(number)
        if process is not None and kind in b"oex":
            process._receive(kind, payload)
        elif process is not None and kind == b"f":
            self._lose(f"it cannot start a program: {payload.decode(errors='replace')}")
        elif number in self._answers:
            self._answers[number] = (kind, payload)
        self._changed.notify_all()

    async def _ask(self, kind: bytes, payload: bytes = b"") -> bytes:
        self._number += 1
        number = self._number
        self._answers[number] = None
        try:
            await self._send(kind, number, payload)
            with anyio.move_on_after(ANSWER_TIMEOUT_S) as bound:
                while (answer := self._answers[number]) is None:
                    self._check()
                    await self._changed.wait()
            if bound.cancelled_caught:
                raise self._lose(f"it did not answer within {ANSWER_TIMEOUT_S:g} s")
        finally:
            del self._answers[number]
        assert answer is not None
        if answer[0] == b"f":
            raise SandboxError(answer[1].decode(errors="replace"))
        return answer[1]

    async def _send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        await self._send_frames(frame(kind, number, payload))

    async def _send_frames(self, *frames: bytes) -> None:
        self._check()
        # Half a frame would garble all that follow: once begun, it is sent whole.
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_TIMEOUT_S) as bound:
            async with self._sending:
                try:
                    await self._link.send(b"".join(frames))
                except SandboxLostError as error:
                    raise self._lose(str(error)) from error
        if bound.cancelled_caught:
            raise self._lose(f"it took no input for {ANSWER_TIMEOUT_S:g} s")

    def _check(self) -> None:
        if self.lost is not None:
            raise SandboxLostError(f"the sandbox is gone: {self.lost}")

    def _lose(self, why: str) -> SandboxLostError:
        if self.lost is None:
            self.lost = why
            self.on_lost()
        for process in self._processes.values():
            process._changed.notify_all()
        self._changed.notify_all()
        return SandboxLostError(f"the sandbox is gone: {self.lost}")


def as_bytes(text: str) -> bytes:
    """Return a text as a program reads it. A model's may hold half of a surrogate pair: no encoding has that, and Python takes it for an error."""
    return text.encode(errors="surrogatepass")


def _command(argv: Sequence[str]) -> dict[str, Any]:
    if not argv or isinstance(argv, str) or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise SandboxError(f"argv = {argv!r} must be a list of words, the program first")
    return {"argv": list(argv)}
