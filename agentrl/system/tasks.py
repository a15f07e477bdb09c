"""Tasks, threads, conditions, and things that are held open by a task of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

THREADS = 40
_limiter = anyio.CapacityLimiter(THREADS)
_users_limiter = anyio.CapacityLimiter(THREADS)


async def in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Return what `function(*arguments)` does, called in a thread that no workflow can keep. For what ends by itself, and is no user's code.

    A cancellation waits for its end, unless it is for `abandon_on_cancel`: then it must leave nothing behind.
    """
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=_limiter)


async def in_users_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return what the user's `function(*arguments)` does, called in a thread. A cancellation leaves it behind: it may never end."""
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=_users_limiter)


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Yield a task group that is cancelled when its block ends. What the block raises comes out as itself, not in a group."""
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
    finally:  # where the block was cancelled, so is its end
        if failure is not None:
            raise failure


@asynccontextmanager
async def opening(open_it: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[Callable[[], Awaitable[T]]]:
    """Open something in a task of its own while the block goes on, and close it when the block ends.

    It stays open until the block has ended, also where that is cancelled and first finishes something in a shielded scope.

    Args:
        open_it: Opens it.

    Yields:
        A function that waits until it is open and returns it, or raises what kept it from opening.
    """
    opened, failed, ready = list[T](), list[Exception](), anyio.Event()
    held = anyio.CancelScope(shield=True)

    async def hold() -> None:
        try:
            with held:
                async with open_it() as value:
                    opened.append(value)
                    ready.set()
                    await anyio.sleep_forever()
        except Exception as error:
            if opened:
                raise
            failed.append(error)
            ready.set()

    async def wait() -> T:
        await ready.wait()
        if failed:
            raise failed[0]
        return opened[0]

    async with background_tasks() as tasks:
        tasks.start_soon(hold)
        try:
            yield wait
        finally:
            held.cancel()


class Condition:
    """Wakes every task that waits for a change, each time that one is announced.

    It is like `anyio.Condition`, but without a lock, so that `notify_all` needs no `await`: tasks of one event loop see each other's
    changes whole. Who waits looks again by itself; a change that comes while nobody waits wakes nobody.

        self.ready.append(item)               while not self.ready:
        self.changed.notify_all()     ──►         await self.changed.wait()
    """

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify_all(self) -> None:
        """Wake all who wait now. Those who wait later wait for the next change."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate()` is true, which is asked now and after every change. What it raises is raised."""
        while not predicate():
            await self.wait()


@dataclass
class Lease(Generic[T]):
    """An open thing that has one user, who releases it."""

    value: T
    _closing: anyio.Event
    _closed: anyio.Event

    async def release(self) -> None:
        """Close it, and wait until it is."""
        self._closing.set()
        await self._closed.wait()


@dataclass
class Resources:
    """The things that a run, or an episode's environment, keeps open. Make it with `open_resources`.

    An async context manager has to be left by the task that entered it. An episode's own task may be cancelled at any place, so what
    outlives a call is entered by a task of its own, and left when it is released.
    """

    _tasks: TaskGroup
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def hold(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> Lease[T]:
        """Open something for one user. Raises what opening it raises."""
        lease: Lease[T] = await self._tasks.start(_keep_open, open_it)
        return lease

    async def share(self, key: Hashable, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the thing of that key, opened by whoever comes first and closed with the run."""
        async with self._opening:
            if key not in self._shared:
                self._shared[key] = (await self.hold(open_it)).value
        value: T = self._shared[key]
        return value


async def _keep_open(
    open_it: Callable[[], AbstractAsyncContextManager[T]], *, task_status: TaskStatus[Lease[T]]
) -> None:
    lease: Lease[T] | None = None
    closing, closed = anyio.Event(), anyio.Event()
    try:
        async with open_it() as value:
            lease = Lease(value, closing, closed)
            task_status.started(lease)
            await closing.wait()
    except Exception:
        # After the start its users see for themselves that the thing is broken; this task must not take the run down.
        if lease is None:
            raise
    finally:
        closed.set()


@asynccontextmanager
async def open_resources() -> AsyncIterator[Resources]:
    """Yield what keeps things open; all of them are closed at the end of the block."""
    async with background_tasks() as tasks:
        yield Resources(tasks)
