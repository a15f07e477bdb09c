"""Child processes that cannot outlive their parent: they end when their standard input closes, however it closes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, Process, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from agentrl.errors import AgentRLError, error_line
from agentrl.system.files import open_private
from agentrl.system.tasks import in_thread

STOP_TIMEOUT_S = 10.0
"""How long a child may take to end after its standard input closed; then it is killed."""
CHILDREN_TIMEOUT_S = 3.0
"""How long what the child started may outlive it."""
STATUS_TIMEOUT_S = 5.0
"""How long a child that says nothing any more may take to end."""
MAX_LINE_BYTES = 2**20
LOG_TAIL_BYTES = 2**16
"""How much of the end of a child's log is searched for what ended it."""


@dataclass(eq=False)
class Child:
    """A process that is talked to in lines, wherever it runs. On this machine, `child_process` opens it."""

    name: str
    stdin: ByteSendStream
    stdout: ByteReceiveStream
    log: Path
    error: type[AgentRLError]
    stream: ByteStream | None
    """Our end of the stream that it was given, if it was given one."""
    wait: Callable[[], Awaitable[int]]
    """Waits until the process has ended, and returns its exit status, negative for a signal."""
    kill: Callable[[], object]
    """Kills the process and all that it started."""

    def __post_init__(self) -> None:
        self._lines = BufferedByteReceiveStream(self.stdout)

    async def write_line(self, line: str) -> None:
        """Send one line."""
        try:
            await self.stdin.send(line.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise await self._died() from None

    async def read_line(self, timeout_s: float) -> str:
        """Return the next line. Raises the child's error when it ends, or says nothing for `timeout_s`."""
        try:
            with anyio.fail_after(timeout_s):
                return (await self._lines.receive_until(b"\n", MAX_LINE_BYTES)).decode()
        except TimeoutError:
            raise self.error(f"the {self.name} said nothing for {timeout_s:g} s; its log is {self.log}") from None
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise await self._died() from None
        except (anyio.DelimiterNotFound, UnicodeDecodeError):
            raise self.error(f"the {self.name} said what is no line of text; its log is {self.log}") from None

    async def _died(self) -> AgentRLError:
        status = 0
        with anyio.move_on_after(STATUS_TIMEOUT_S):
            status = await self.wait()
        said = error_line(await in_thread(end_of_log, self.log)) or "nothing in its log"
        how = how_ended(status) if status < 0 else f"ended: {said}"
        return self.error(f"the {self.name} {how}; its log is {self.log}")


def how_ended(status: int) -> str:
    """Return how a process of this exit status ended, which is negative for a signal."""
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was killed by {next((one.name for one in signal.Signals if one == -status), f'signal {-status}')}"


def end_of_log(log: Path, start: int = 0) -> str:
    """Return the last `LOG_TAIL_BYTES` of a log from byte `start` on as text; "" where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


async def start_process(command: Sequence[str], **options: Any) -> Process:
    """Start a program with pipes for its input and outputs, as `anyio.open_process`, of which it takes the other `options`.

    A cancellation waits until the process is there, so that the caller's `finally` has one to end: where it comes while
    asyncio still connects the pipes, asyncio loses the process.

    Raises:
        OSError: The program cannot be started.
    """
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    return process  # noqa: RET504  for mypy, a scope may swallow what is raised in it


def kill_group(process: Process) -> None:
    """Kill a process that began a session, and all that it started in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def kill_process(process: Process) -> None:
    """Kill a process that may have ended already, at Ctrl-C for one.

    Its own `kill` would look first whether it has, and take its end from asyncio, which then warns of an unknown child and says
    that it ended with 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


@asynccontextmanager
async def child_process(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    error: type[AgentRLError],
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stream: bool = False,
) -> AsyncIterator[Child]:
    """Run a command for the length of the context.

    It has a session of its own, so that Ctrl-C in the terminal reaches this process alone, which then ends the child in
    good order, by closing its standard input.

    Args:
        name: What messages call it.
        command: The program and its arguments.
        log: The file that its standard error goes to.
        error: The class of its errors. One is raised when it cannot be started.
        env: Its environment; None: this process's.
        pass_fds: Descriptors that stay open in it.
        stream: Whether it is given one end of a stream of bytes, whose descriptor becomes the command's last word.
    """
    async with AsyncExitStack() as stack:
        ours: ByteStream | None = None
        try:
            with open_private(log, "ab") as stderr, ExitStack() as given:
                if stream:
                    here, there = (given.enter_context(end) for end in socket.socketpair())
                    ours = await stack.enter_async_context(await SocketStream.from_socket(here.dup()))
                    command, pass_fds = [*command, str(there.fileno())], [*pass_fds, there.fileno()]
                process = await start_process(
                    command, stderr=stderr, start_new_session=True, env=env, pass_fds=pass_fds
                )
        except OSError as failure:  # also where this process has no descriptors left
            raise error(f"the {name} cannot be started: {command[0]}: {failure.strerror}") from failure
        stack.push_async_callback(end_process, process)
        assert process.stdin is not None
        assert process.stdout is not None
        yield Child(name, process.stdin, process.stdout, log, error, ours, process.wait, partial(kill_group, process))


async def end_process(process: Process) -> None:
    """End a process in good order, by closing its standard input, and what it started."""
    with anyio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        # Its own children too. They first get time to put away what they shared, such as semaphores.
        with suppress(ProcessLookupError), anyio.move_on_after(CHILDREN_TIMEOUT_S):
            while process.returncode is not None:
                os.killpg(process.pid, 0)
                await anyio.sleep(0.05)
        kill_group(process)
        await process.wait()
        await process.aclose()
