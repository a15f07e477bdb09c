"""A sandbox over the standard streams of a program that a hosted service runs.

The service starts `start_command()`, a few hundred bytes of Python that need nothing of agentrl. What is to run comes over its input, so
no command line is long, and nothing is said before the other end listens.

    Backend.start ─► the service starts start_command() ─► Streams ─► open_streams() ─► Link

A service whose streams carry text, or are a terminal's, is asked for `text=True`: lines of base64 then go both ways.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.backends.start_arguments import (
    GREETING_TIMEOUT_S,
    PATH,
    init_arguments,
    packed_modules,
    sandbox_environment,
)
from agentrl.sandboxes.seams import WORK, SandboxSpec

MARK = b"agentrl is listening"
"""A program of text says so before it reads; what a shell or a terminal says first is skipped."""
MARK_TIMEOUT_S = 60.0
LONGEST_LINE = 1 << 16
RELAYS = 2
"""Processes and threads beside the first ones that carry text."""

_START = f"""
import os, select, sys
def take(size):
    data = b""
    while len(data) < size:
        part = select.select([0], [], [], {GREETING_TIMEOUT_S})[0] and os.read(0, size - len(data))
        if not part: sys.exit("nobody said what to run")
        data += part
    return data
words = take(int(take(8), 16)).decode().split("\\0")
os.execv(sys.executable, [sys.executable, *words])
"""
_START_OF_TEXT = f"""
import base64, os, subprocess, sys, threading
if os.isatty(0):
    import tty
    tty.setraw(0)
program = subprocess.Popen([sys.executable, "-I", "-c", {_START!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def carry():
    while data := os.read(program.stdout.fileno(), 49152):
        sys.stdout.buffer.write(base64.b64encode(data) + b"\\n")
        sys.stdout.buffer.flush()
    os._exit(program.wait() & 255)
print({MARK.decode()!r}, flush=True)
threading.Thread(target=carry).start()
try:
    for line in sys.stdin.buffer:
        program.stdin.write(base64.b64decode(line))
        program.stdin.flush()
    program.stdin.close()
except OSError: pass
"""


class Streams(Protocol):
    """The standard input and output of a program that runs elsewhere. Whatever either raises means that the program is gone."""

    async def send(self, data: bytes) -> None:
        """Write to its input, all of it and in the order of the calls."""
        ...

    async def receive(self) -> bytes:
        """Return what it wrote next to its output, at least one byte; b"" when it has ended."""
        ...


@dataclass
class StreamLink:
    """A `Link` over `Streams`."""

    streams: Streams
    work: str
    env: dict[str, str]
    nproc: int | None
    text: bool
    _line: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The program is gone.
        """
        if self.text:
            size = LONGEST_LINE // 4 * 3
            parts = [b64encode(data[at : at + size]) + b"\n" for at in range(0, len(data), size)]
            data = b"".join(parts)
        try:
            await self.streams.send(data)
        except SandboxLostError:
            raise
        except Exception as error:
            raise SandboxLostError(_broken(error)) from error

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: The program is gone.
        """
        while True:
            data = await self._read()
            if not self.text:
                return data
            self._line += data
            *lines, rest = self._line.split(b"\n")
            self._line = bytearray(rest)
            try:
                found = b"".join(b64decode(line, validate=True) for line in (whole.strip() for whole in lines))
            except binascii.Error as error:
                raise SandboxLostError(f"it said something that is no base64: {bytes(lines[0][:80])!r}") from error
            if found:
                return found

    async def skip_to_mark(self) -> None:
        """Skip what is said before a program of text listens.

        Raises:
            SandboxLostError: The program is gone.
        """
        while MARK not in self._line or b"\n" not in self._line.partition(MARK)[2]:
            self._line += await self._read()
        self._line = self._line.partition(MARK)[2].partition(b"\n")[2]

    async def _read(self) -> bytes:
        try:
            data = await self.streams.receive()
        except SandboxLostError:
            raise
        except Exception as error:
            raise SandboxLostError(_broken(error)) from error
        if not data:
            raise SandboxLostError("its program ended")
        return data


def start_command(*, text: bool = False) -> list[str]:
    """Return the command that a service is to start, in an image that has a `python3` of 3.10 or later."""
    return ["python3", "-I", "-c", _START_OF_TEXT if text else _START]


async def open_streams(
    streams: Streams, spec: SandboxSpec, *, isolated: bool, text: bool = False, counted: bool = True, work: str = WORK
) -> StreamLink:
    """Return a link over the streams of a program that runs `start_command()`.

    Args:
        streams: Its standard input and output. Its standard error may go anywhere.
        spec: The sandbox.
        isolated: Whether the program is root and may make namespaces and mounts. Each user of the sandbox then has a place of its own
            without a network, with folders in memory. Without it, whatever the service puts around the program is the only fence: a
            reset kills what runs and empties the writable folders.
        text: Whether `start_command(text=True)` was started.
        counted: Whether something bounds the memory of everything in the sandbox together. Without it, kinds of memory that no
            process's size shows are refused.
        work: The user's folder, which must exist.

    Raises:
        SandboxError: The program does not begin to listen.
        SandboxLostError: It is gone.
    """
    limit = spec.limits.processes + (RELAYS if text and not isolated else 0)
    link = StreamLink(streams, work, sandbox_environment(work, PATH), limit, text)
    if text:
        with anyio.move_on_after(MARK_TIMEOUT_S) as bound:
            await link.skip_to_mark()
        if bound.cancelled_caught:
            raise SandboxError(f"the program of the sandbox did not listen within {MARK_TIMEOUT_S:g} s")
    await in_thread(packed_modules, False)  # which is kept
    words = init_arguments(
        spec, own_python=False, work=work, isolated=isolated, counted=counted, scratch=isolated or work == WORK
    )
    request = "\0".join(words).encode()
    await link.send(b"%08x" % len(request) + request)
    return link


def _broken(error: Exception) -> str:
    return f"its connection broke: {type(error).__name__}: {error}"
