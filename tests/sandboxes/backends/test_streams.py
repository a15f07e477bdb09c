"""A link over the streams of a service's program where they are a terminal's, which changes what it carries."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxLostError
from agentrl.sandboxes import SandboxSpec
from agentrl.sandboxes.backends.streams import open_streams, start_command
from agentrl.sandboxes.sandbox import Sandbox

pytestmark = pytest.mark.anyio


class Terminal:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    async def send(self, data: bytes) -> None:
        while data:
            await anyio.wait_writable(self.fd)
            data = data[await in_thread(os.write, self.fd, data[:4096]) :]

    async def receive(self) -> bytes:
        await anyio.wait_readable(self.fd)
        try:
            return await in_thread(os.read, self.fd, 65536)
        except OSError:  # as the kernel says that the other end is closed
            return b""


async def test_a_terminal_carries_every_byte(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = shlex.join([sys.executable, *start_command(text=True)[1:]])
    shell = ["sh", "-c", f"echo Welcome to the shell; exec {command}"]
    process = subprocess.Popen(shell, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(theirs)
    data = bytes(range(256)) * 1024
    try:
        link = await open_streams(Terminal(ours), SandboxSpec(), isolated=False, text=True, work=str(tmp_path))
        async with anyio.create_task_group() as tasks:
            sandbox = Sandbox(link, SandboxSpec())
            await tasks.start(sandbox.serve)
            done = await sandbox.run(["cat"], stdin=data)
            assert done.stdout == data
            process.kill()
            with pytest.raises(SandboxLostError, match="its program ended"):
                await sandbox.run(["sleep", "100"])
            tasks.cancel_scope.cancel()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([b"agentrl is listening\r\n", b"Segmentation fault\n"], "no base64"),
        ([b"sh: python3: not found\n", b""], "its program ended"),
    ],
)
async def test_what_is_no_sandbox_is_lost(said: list[bytes], says: str) -> None:
    class Said:
        async def send(self, data: bytes) -> None:
            pass

        async def receive(self) -> bytes:
            return said.pop(0)

    async def open_and_listen() -> None:
        await (await open_streams(Said(), SandboxSpec(), isolated=False, text=True)).receive()

    with pytest.raises(SandboxLostError, match=says):
        await open_and_listen()
