"""What a sandbox may send to the host is bounded, whatever its programs make of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes import BackendName, Limits, Sandbox, open_sandbox
from agentrl.sandboxes.linked_sandbox import LinkedSandbox, LongLineError

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
        await process.send(b"\n")
        assert await process.read_line() == b"b" * 100_000


async def test_a_request_and_its_answer_share_a_deadline(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the end of a lease is over in time, of its program and of the reset."""
    deadlines: dict[str, float] = {}

    def watch(name: str, real: Any) -> None:
        async def watched(*arguments: Any) -> None:
            deadlines[name] = arguments[-1]
            await real(*arguments)

        monkeypatch.setattr(LinkedSandbox, name, watched)

    watch("send", LinkedSandbox.send)
    watch("wait_until", LinkedSandbox.wait_until)
    async with await sandbox.start(["sleep", "1000"]):
        pass
    ended = deadlines.copy()
    await sandbox.reset()
    assert ended["send"] == ended["wait_until"] < deadlines["send"] == deadlines["wait_until"]


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
