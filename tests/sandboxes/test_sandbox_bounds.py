"""What a sandbox may send to the host is bounded, whatever its programs make of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import BackendName, Limits, Sandbox, open_sandbox
from agentrl.sandboxes.process import LongLineError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox(backend: BackendName) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend=backend, limits=Limits(timeout_s=20, disk_mb=64, file_mb=64)) as sandbox:
        yield sandbox


async def test_a_line_is_read_up_to_a_bound(sandbox: Sandbox) -> None:
    code = "import sys\nsys.stdout.write('a' * 1000 + '\\n' + 'b' * 100_000)\nsys.stdout.flush()\ninput()"
    async with await sandbox.start(["python3", "-c", code]) as process:
        assert await process.read_line(2000) == b"a" * 1000 + b"\n"
        with pytest.raises(LongLineError, match="a line of more than 2000 bytes"):
            await process.read_line(2000)
        await process.end_input()
        assert await process.read_line() == b"b" * 100_000


@pytest.mark.soak
async def test_a_line_written_letter_by_letter_is_searched_once(sandbox: Sandbox) -> None:
    code = "import os\nfor _ in range(30_000): os.write(1, b'x')\nos.write(1, b'\\n')\nprint('end')"
    started = time.thread_time()
    async with await sandbox.start(["python3", "-c", code]) as process:
        assert await process.read_line() == b"x" * 30_000 + b"\n"
        assert await process.read_line() == b"end\n"
        assert await process.read_line() is None
    assert time.thread_time() - started < 10


async def test_a_sandbox_that_sends_more_than_was_asked_for_is_lost(sandbox: Sandbox) -> None:
    """As one would that a program had taken over: the limits inside are not the only ones."""
    limits = Limits(output_mb=0.001, timeout_s=20)
    async with await sandbox.start(["cat"], limits=limits) as process:
        process._sandbox._receive(b"o", process._number, b"x" * 1000)
        process._sandbox._receive(b"e", process._number, b"x" * 100)
        with pytest.raises(SandboxLostError, match="more output than the program's limit"):
            await process.wait()
    assert sandbox.lost


async def test_holes_in_files_are_no_part_of_a_snapshot(sandbox: Sandbox) -> None:
    """Twenty files of 60 MB that hold nothing: 1.2 GB in an archive."""
    code = "for n in range(20): open(f'hole{n}', 'wb').truncate(60 * 2**20)"
    assert (await sandbox.run(["python3", "-c", code])).ok
    with pytest.raises(SandboxError, match="tar ended by output_limit"):
        await sandbox.snapshot()
    assert sandbox.lost is None
    await sandbox.run(["true"], only_files={})
    await sandbox.write("small", b"content")
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    assert await sandbox.read("small") == b"content"


async def test_names_that_are_no_utf8_survive_a_snapshot(sandbox: Sandbox) -> None:
    code = "import os\nopen(b'/sandbox/\\xff\\xfe', 'w').write('1')\nos.mkdir(b'/sandbox/\\xed\\xa0\\x80')\nos.symlink(b'\\xff', b'/sandbox/link')"
    assert (await sandbox.run(["python3", "-c", code])).ok
    await sandbox.restore(await sandbox.snapshot())
    listed = await sandbox.run(["python3", "-c", "import os; print(sorted(os.listdir(b'/sandbox')))"])
    assert listed.stdout == b"[b'link', b'\\xed\\xa0\\x80', b'\\xff\\xfe']\n"
