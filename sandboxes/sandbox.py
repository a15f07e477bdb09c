"""A sandbox as the host sees it: run programs, talk to them, read and write files, reset. The other end is `inside/first_process.py`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack, get_type_hints

import anyio
from anyio.abc import TaskStatus
from typing_extensions import TypedDict

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.condition import Condition
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.inside.inbox import frame, take_frames
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.seams import MB, WORK, ExecResult, Limits, Link, SandboxSpec

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
"""Bound of reading, writing and resetting."""
MAX_STDIN_BYTES = 64 * MB
MAX_SNAPSHOT_MB = 32
PACK = "find . -mindepth 1 -maxdepth 1 -print0 | tar -cf - --null -T -"
"""Without the folder itself, whose mode only its owner may restore."""
MAX_RECEIVED_BYTES = 512 * MB
"""A sandbox that sends more at once is lost."""


class RunOptions(TypedDict, total=False):
    """The options of each way to run a program."""

    stdin: bytes | None
    """Its whole input. None, for a program that is started: its input is what is sent to it."""
    timeout_s: float | None
    """Bound of its wall-clock time, in place of that of `limits`."""
    env: Mapping[str, str]
    """Variables besides the sandbox's own."""
    cwd: str
    """Where it runs, in place of `Sandbox.work`."""
    limits: Limits | None
    """Its limits, in place of the sandbox's."""
    only_files: Mapping[str, bytes] | None
    """The writable folders are emptied and these files written first, as by `clear` and `write`, in the same message."""


_OPTIONS = get_type_hints(RunOptions)


class Sandbox:
    r"""A locked-down place to run programs.

    Get one from `open_sandbox()`, a `SandboxPool` or `episode.sandbox()`.

        done = await sandbox.run(["python3", "-c", "print(6 * 7)"], timeout_s=2)
        assert done.ok and done.stdout == b"42\n"

    Files stay until `reset`. When the only running program ends, the processes that it left running are killed.
    """

    def __init__(
        self, spec: SandboxSpec, *, env: Mapping[str, str], work: str = WORK, nproc: int | None = None
    ) -> None:
        """Make one.

        Args:
            spec: What it is.
            env: Environment variables of every program.
            work: The folder of the user's files.
            nproc: RLIMIT_NPROC of programs, where nothing better bounds their number.
        """
        self.spec = spec
        self.work = work
        """Where the user's files are, inside the sandbox."""
        self.lost: str | None = None
        """Why the sandbox is gone, when it is."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the sandbox is lost."""
        self.runs = 0
        self.run_s = 0.0
        self._env = env
        self._nproc = nproc
        self._processes: dict[int, Process] = {}
        self._answers: dict[int, tuple[bytes, bytes] | None] = {}
        self._changed = Condition()
        self._number = 0

    # -- programs ------------------------------------------------------------------------------------------------

    async def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> ExecResult:
        """Run a command to its end.

        Args:
            argv: The program and its arguments.
            options: See `RunOptions`. Without stdin, its input is empty.

        Raises:
            SandboxLostError: The sandbox was lost with it.
            SandboxError: An input of more than 64 MB.
            ConfigError: The limits are more than the sandbox's.
        """
        options.setdefault("stdin", b"")
        async with await self.start(argv, **options) as process:
            return await process.wait()

    async def run_python(
        self, script: str = "", *, code: str = "", args: Sequence[str] = (), **options: Unpack[RunOptions]
    ) -> ExecResult:
        """Run a Python file of the sandbox, or `code`, to its end, in a process forked from an interpreter that is warm already.

        The same as `run(["python3", script, *args])`, without the 10 to 30 ms that an interpreter takes to start.
        """
        options.setdefault("stdin", b"")
        program = {"script": script, "code": code, "args": list(args)}
        async with await self._start(program, options) as process:
            return await process.wait()

    async def start(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> Process:
        """Start a command and go on. Without `stdin`, its input is what is sent to it.

        Raises:
            SandboxError: `argv` is no list of words.
        """
        if not argv or isinstance(argv, str) or not all(isinstance(word, str) and "\0" not in word for word in argv):
            raise SandboxError(f"argv = {argv!r} must be a list of words, the program first")
        return await self._start({"argv": list(argv)}, options)

    async def start_python(self, code: str, *, framework: str | None = None, **options: Unpack[RunOptions]) -> Process:
        """Start Python `code` in a warm process, which has imported `framework`. It may import from `agentrl.sandboxes.inside`."""
        return await self._start({"code": code, "framework": framework}, options)

    async def _start(self, program: dict[str, Any], options: RunOptions) -> Process:
        for name, value in options.items():
            if name not in _OPTIONS:
                raise TypeError(f"a run has no option {name!r}; it may have {', '.join(_OPTIONS)}")
            check_argument(name, value, _OPTIONS[name])
        stdin, files = options.get("stdin"), options.get("only_files")
        limits = (options.get("limits") or self.spec.limits).but(timeout_s=options.get("timeout_s"))
        if stdin is not None and len(stdin) > MAX_STDIN_BYTES:
            raise SandboxError(
                f"stdin of {len(stdin)} bytes; at most {MAX_STDIN_BYTES}. Write it to a file of the sandbox"
            )
        limits.check_within(self.spec.limits)
        request = {
            **program,
            "only_files": None if files is None else [(path, len(data)) for path, data in files.items()],
            "interactive": stdin is None,
            "env": {**self._env, **options.get("env", {})},
            "cwd": options.get("cwd") or self.work,
            "limits": {
                "timeout_s": limits.timeout_s,
                "cpu_s": limits.cpu_s,
                "memory_bytes": limits.memory_mb * MB,
                "file_bytes": limits.file_mb * MB,
                "output_bytes": int(limits.output_mb * MB),
                "open_files": limits.open_files,
                "nproc": self._nproc,
            },
        }
        self._number += 1
        self.runs += 1
        process = self._processes[self._number] = Process(self, self._number, limits)
        payload = b"".join((json.dumps(request).encode(), b"\n", *(files or {}).values(), stdin or b""))
        await self._send(b"S", self._number, payload)
        return process

    # -- files ---------------------------------------------------------------------------------------------------

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Write a file, and the folders above it; a relative path is under `work`."""
        content = as_bytes(data) if isinstance(data, str) else data
        await self._ask(b"W", json.dumps({"path": path, "mode": mode}).encode() + b"\n" + content)

    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Read a regular file.

        Raises:
            SandboxError: It is missing or larger.
        """
        return await self._ask(b"R", json.dumps({"path": path, "max_bytes": max_bytes}).encode())

    async def snapshot(self) -> bytes:
        """Return everything under `work`, as a tar archive that `restore` takes: at most 32 MB, with holes in files written out.

        Raises:
            SandboxError: It is more, or something cannot be read.
        """
        return await self._tar(PACK, limits=self.spec.limits.but(output_mb=MAX_SNAPSHOT_MB))

    async def restore(self, snapshot: bytes) -> None:
        """Empty the writable folders and put the files of a snapshot under `work`."""
        await self._tar("tar -xf -", stdin=snapshot, only_files={})

    async def _tar(self, command: str, **options: Unpack[RunOptions]) -> bytes:
        done = await self.run(["sh", "-c", command], **options)
        if not done.ok:
            raise SandboxError(f"tar ended by {done.end_reason}: {done.stderr[-500:].decode(errors='replace')}")
        return done.stdout

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
        """Ask for what a frame says; `_dispatch` takes what comes of it."""
        raise NotImplementedError

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


class LinkedSandbox(Sandbox):
    """A sandbox whose first process is `inside/first_process.py`, at the other end of a link."""

    def __init__(
        self, link: Link, spec: SandboxSpec, *, env: Mapping[str, str], work: str = WORK, nproc: int | None = None
    ) -> None:
        super().__init__(spec, env=env, work=work, nproc=nproc)
        self._link = link
        self._sending = anyio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """Yield it once it is ready, for as long as the context lasts.

        Raises:
            SandboxError: It was not ready in time.
        """
        async with background_tasks() as tasks:
            with anyio.move_on_after(START_TIMEOUT_S) as bound:
                await tasks.start(self.serve)
            if bound.cancelled_caught:
                raise SandboxError(f"the sandbox was not ready within {START_TIMEOUT_S:g} s")
            yield self

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
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
                    self._dispatch(kind, number, payload)
                if len(received) > MAX_RECEIVED_BYTES:
                    raise SandboxLostError(f"it sent more than {MAX_RECEIVED_BYTES} bytes at once")
        except SandboxLostError as error:
            self._lose(str(error))
            if not ready:
                raise
        finally:
            self.lost = self.lost or "its context has ended"
            for process in self._processes.values():
                process._changed.notify_all()

    async def _send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._check()
        # Half a frame would garble all that follow: once begun, it is sent whole.
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_TIMEOUT_S) as bound:
            async with self._sending:
                try:
                    await self._link.send(frame(kind, number, payload))
                except SandboxLostError as error:
                    raise self._lose(str(error)) from error
        if bound.cancelled_caught:
            raise self._lose(f"it took no input for {ANSWER_TIMEOUT_S:g} s")


def as_bytes(text: str) -> bytes:
    """Return a text as a program reads it. A model's may hold half of a surrogate pair: no encoding has that, and Python takes it for an error."""
    return text.encode(errors="surrogatepass")
