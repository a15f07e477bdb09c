"""Find leaks: open files, threads, children and tasks, counted before and after something that should leave nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from agentrl.system.tasks import in_thread

OF_THE_LIBRARIES = ("AnyIO worker thread", "agentrl ", "asyncio_")
"""Beginnings of the names of threads that are kept for the next use."""
REMEDIES = {
    "files": "close them in close(), or in aclose() for what is awaited",
    "threads": "end them in close() or aclose()",
    "child processes": "end them in close() or aclose(), and wait for them",
    "tasks": "cancel these asyncio tasks in aclose(), and await them",
}
Held = dict[str, Counter[str]]
"""The names of what the process holds, by the kinds of `REMEDIES`. Files and child processes are seen on Linux alone."""


async def held_now() -> Held:
    """Return what the process holds."""
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "task") for task in asyncio.all_tasks())
    return {"tasks": tasks, **await in_thread(_held_by_process)}


def leaked_since(before: Held, now: Held, times: int) -> dict[str, list[str]]:
    """Return, by kind, what was added for each of `times` repetitions at least."""
    added = {kind: now[kind] - before[kind] for kind in REMEDIES}
    return {kind: sorted(more)[:3] for kind, more in added.items() if more.total() >= times}


def _held_by_process() -> Held:
    gc.collect()
    files: Counter[str] = Counter()
    for link in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the folder's own, closed by now
            files[os.readlink(link).partition(":[")[0]] += 1
    children: Counter[str] = Counter()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            children.update(f"process {pid}" for pid in path.read_text().split())
    threads = (thread.name for thread in threading.enumerate())
    own = Counter(name for name in threads if not name.startswith(OF_THE_LIBRARIES))
    return {"files": files, "child processes": children, "threads": own}
