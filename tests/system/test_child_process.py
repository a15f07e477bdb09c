"""Processes that a cancellation cannot lose, whenever it comes."""

from __future__ import annotations

import gc
import subprocess
import warnings
from pathlib import Path

import anyio
import psutil
import pytest

from agentrl.errors import AgentRLError
from agentrl.sandboxes.backends.process_link import process_link
from agentrl.system.child_process import child_process, start_process

pytestmark = pytest.mark.anyio
STEPS = 20
"""Steps of the event loop within which a process starts; the test goes past that."""


async def plain(_: Path) -> None:
    process = await start_process(["sleep", "60"], stderr=subprocess.PIPE)
    try:
        await anyio.sleep(60)
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.aclose()


async def child(folder: Path) -> None:
    async with child_process("cat", ["cat"], log=folder / "cat.log", error=AgentRLError):
        await anyio.sleep(60)


async def link(_: Path) -> None:
    async with process_link(["cat"], env={}):
        await anyio.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize("use", [plain, child, link])
async def test_a_process_ends_with_its_user_whenever_that_is_cancelled(use: object, tmp_path: Path) -> None:
    """After any number of steps of the event loop: no process is left, and none that Python complains about."""
    assert callable(use)
    before = {process.pid for process in psutil.Process().children()}
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always", ResourceWarning)
        for steps in range(STEPS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use, tmp_path)
                for _ in range(steps):
                    await anyio.sleep(0)
                tasks.cancel_scope.cancel()
            left = [process for process in psutil.Process().children() if process.pid not in before]
            assert left == [], f"cancelled after {steps} steps"
        gc.collect()
    assert [str(complaint.message) for complaint in complaints] == []


async def test_a_killed_child_is_said_to_be_killed_whatever_its_log_ends_with(tmp_path: Path) -> None:
    script = "echo ready; echo 'loading 40%' >&2; read word; kill -KILL $$"
    log = tmp_path / "log"
    async with child_process("trainer", ["sh", "-c", script], log=log, error=AgentRLError) as child:
        assert await child.read_line(60) == "ready"
        await child.write_line("go on")
        with pytest.raises(AgentRLError, match=r"^the trainer was killed by SIGKILL; its log is"):
            await child.read_line(60)
    assert log.read_text() == "loading 40%\n"
