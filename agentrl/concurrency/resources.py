"""Things that several episodes use, or that an episode's environment keeps open: each held open by a task of its own.

An async context manager has to be left by the task that entered it. An episode's own task may be cancelled at any
place, so what outlives a call is entered here, and left when the last user has given it back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from agentrl.concurrency.background import background_tasks

T = TypeVar("T")


@dataclass
class Lease(Generic[T]):
    """An open thing. `release` closes it, unless it is shared."""

    value: T
    _closing: anyio.Event
    _closed: anyio.Event

    async def release(self) -> None:
        """Close it, and wait until it is."""
        self._closing.set()
        await self._closed.wait()


@dataclass
class Resources:
    """The things that a run keeps open. Make it with `open_resources`."""

    _tasks: TaskGroup
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def hold(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> Lease[T]:
        """Open something for one user. Raises what opening it raises."""
        failure: list[Exception] = []
        held: Lease[T] | None = await self._tasks.start(_keep_open, open_it, failure)
        if held is None:
            raise failure[0]
        return held

    async def share(self, key: Hashable, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the thing of that key, opened by whoever comes first and closed with the run."""
        async with self._opening:
            if key not in self._shared:
                self._shared[key] = (await self.hold(open_it)).value
        value: T = self._shared[key]
        return value


async def _keep_open(
    open_it: Callable[[], AbstractAsyncContextManager[T]],
    failure: list[Exception],
    *,
    task_status: TaskStatus[Lease[T] | None],
) -> None:
    closing, closed = anyio.Event(), anyio.Event()
    started = False
    try:
        async with open_it() as value:
            started = True
            task_status.started(Lease(value, closing, closed))
            await closing.wait()
    except Exception as error:
        # After the start the users see for themselves that the thing is broken; this task must not take the run down.
        if not started:
            failure.append(error)
            task_status.started(None)
    finally:
        closed.set()


@asynccontextmanager
async def open_resources() -> AsyncIterator[Resources]:
    """Everything held is closed at the end of the block."""
    async with background_tasks() as tasks:
        yield Resources(tasks)
