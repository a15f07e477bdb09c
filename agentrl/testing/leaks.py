"""Find leaks: open files, threads, children and tasks, counted before and after something that should leave nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.system.tasks import in_thread

OF_THE_LIBRARIES = ("AnyIO worker thread", "agentrl ", "asyncio_")
"""Beginnings of the names of threads that are kept for the next use."""
REMEDIES = {
    "files": "close what on_reset opens: override close(), or aclose() for what is awaited",
    "threads": "end the threads that on_reset starts in close() or aclose()",
    "child processes": "end the processes that on_reset starts in close() or aclose(), and wait for them",
    "tasks": "cancel the asyncio tasks that on_reset starts in aclose(), and await them",
}


@dataclass(frozen=True)
class Holdings:
    """What the process holds, by kind and name. Files and child processes are seen on Linux alone."""

    counts: dict[str, Counter[str]]

    def leaked_since(self, before: Holdings, times: int) -> dict[str, list[str]]:
        """Return, by kind, what was added for each of `times` repetitions at least."""
        added = {kind: counter - before.counts[kind] for kind, counter in self.counts.items()}
        return {kind: sorted(more)[:3] for kind, more in added.items() if more.total() >= times}


async def held_now() -> Holdings:
    """Return what the process holds."""
    tasks = [getattr(task.get_coro(), "__qualname__", "task") for task in asyncio.all_tasks()]
    return await in_thread(_with_tasks, tasks)


def _with_tasks(tasks: list[str]) -> Holdings:
    gc.collect()
    files: list[str] = []
    children: list[str] = []
    with suppress(OSError):
        for entry in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the folder's own, closed by now
                files.append(os.readlink(f"/proc/self/fd/{entry}").partition(":[")[0])
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):
                children += Path(f"/proc/self/task/{thread}/children").read_text().split()
    threads = [t.name for t in threading.enumerate() if not t.name.startswith(OF_THE_LIBRARIES)]
    return Holdings(
        {
            "files": Counter(files),
            "threads": Counter(threads),
            "child processes": Counter(f"process {pid}" for pid in children),
            "tasks": Counter(tasks),
        }
    )
