"""The run's threads are its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agentrl import Episode
from agentrl.event_loop import run_loop
from agentrl.proxy import ChatFormat
from agentrl.threads import in_thread
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
            with anyio.fail_after(5):
                done = await in_thread("-".join, ["a", "b"])
            release.set()
        return done

    assert run_loop(main) == "a-b"


def test_a_workflow_that_takes_all_threads_harms_no_other(nano_format: ChatFormat, tmp_path: Path) -> None:
    release = threading.Event()

    async def hostile(episode: Episode) -> Any:
        async with anyio.create_task_group() as tasks:
            await take_all_threads(tasks, release)

    try:
        result = play(first_of_its_group(hostile), nano_format, tmp_path, episode_timeout_s=0.5)
    finally:
        release.set()
    assert (result.batches, result.open_groups, len(result.failed), len(result.finished)) == (1, 0, 2, 4)
