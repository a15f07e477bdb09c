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
_users_limiter = anyio.CapacityLimiter(THREADS)


async def in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Return what `function(*arguments)` does, called in a thread. For what ends by itself, and is no user's code.

    A cancellation waits for its end, unless it is for `abandon_on_cancel`: then it must leave nothing behind.
    """
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=_limiter)


async def in_users_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return what the user's `function(*arguments)` does, called in a thread. A cancellation leaves it behind: it may never end."""
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=_users_limiter)
