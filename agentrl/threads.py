"""Run what blocks in threads that only the run may take, so that it never waits for a thread that a workflow keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

THREADS = 40
_limiter = anyio.CapacityLimiter(THREADS)


async def in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return what `function(*arguments)` does, called in a thread. For what ends by itself, and is no user's code."""
    return await anyio.to_thread.run_sync(function, *arguments, limiter=_limiter)
