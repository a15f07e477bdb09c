"""The run's threads are its own."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup

import agentrl
from agentrl import Episode
from agentrl.errors import TrainerLostError
from agentrl.proxy import ChatFormat
from agentrl.system.child_process import child_process
from agentrl.system.event_loop import run_loop
from agentrl.system.tasks import in_thread
from tests.rollout.hostile_run import first_of_its_group, play


async def take_all_threads(tasks: TaskGroup, release: threading.Event) -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    for _ in range(int(limiter.total_tokens) + 5):
        tasks.start_soon(anyio.to_thread.run_sync, release.wait)
    while limiter.available_tokens:
        await anyio.sleep(0.01)


def test_it_has_threads_where_a_workflow_took_all_of_anyios() -> None:
    release = threading.Event()

    async def main() -> str:
        async with anyio.create_task_group() as tasks:
            await take_all_threads(tasks, release)
            with anyio.fail_after(60):
                done = await in_thread("-".join, ["a", "b"])
            release.set()
        return done

    assert run_loop(main) == "a-b"


def test_the_end_of_a_child_process_is_noticed_where_a_workflow_took_all_threads(tmp_path: Path) -> None:
    release = threading.Event()
    command = [sys.executable, "-c", "raise SystemExit('it ended')"]

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            await take_all_threads(tasks, release)
            try:
                async with child_process("trainer", command, log=tmp_path / "log", error=TrainerLostError) as child:
                    with anyio.fail_after(90), pytest.raises(TrainerLostError, match="the trainer ended: it ended"):
                        await child.read_line(timeout_s=60)
            finally:
                release.set()

    run_loop(main)


def test_no_module_waits_for_threads_that_a_workflow_may_keep() -> None:
    """anyio's files and threads without a limiter of one's own share 40 threads with everybody."""
    root = Path(agentrl.__path__[0])
    own_process = root / "tasks" / "verifiers_server.py"  # in which no workflow runs
    for file in sorted({*root.rglob("*.py"), *(root.parent / "trainer").rglob("*.py")} - {own_process}):
        text = file.read_text()
        for name in ("Path", "open_file", "TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile", "mkdtemp"):
            assert f"anyio.{name}(" not in text, file
        assert "asyncio.to_thread(" not in text.replace("`asyncio.to_thread(", ""), file
        calls = len(re.findall(r"to_thread\.run_sync\(", text))
        assert calls == len(re.findall(r"to_thread\.run_sync\([^#]*?limiter=", text)), file


@pytest.mark.soak
def test_a_workflow_that_takes_all_threads_harms_no_other(nano_format: ChatFormat, tmp_path: Path) -> None:
    release = threading.Event()

    async def hostile(episode: Episode) -> Any:
        async with anyio.create_task_group() as tasks:
            await take_all_threads(tasks, release)

    try:
        result = play(first_of_its_group(hostile), nano_format, tmp_path, episode_timeout_s=2)
    finally:
        release.set()
    assert (result.batches, result.open_groups, len(result.failed), len(result.finished)) == (1, 0, 2, 4)
