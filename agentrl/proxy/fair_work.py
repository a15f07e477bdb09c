"""Work between the turns of the event loop, shared out fairly.

    small ─► inline, while less than BUDGET_S was spent since the loop last looked at its sockets ─┐
             else one piece a turn of the loop, sessions in turn                                   ├─► the result
    large ─► a thread; a session has one at a time, and sessions take turns at them ───────────────┘

A session with 300 requests, or with a megabyte of text in each, so delays its own requests, and another's by one piece.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync as in_thread

T = TypeVar("T")
INLINE_BYTES = 16 * 2**10
"""Work on fewer bytes takes about a millisecond: a thread would cost more than it saves."""
BUDGET_S = 0.005


class RoundRobin:
    """Those who wait, woken one owner after the other, and in order for each of them."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, deque[anyio.Event]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    async def wait(self, owner: Hashable, hand_on: Callable[[], None]) -> None:
        """Wait to be woken. Where a woken waiter is cancelled before it runs, `hand_on` is called in its place."""
        woken = anyio.Event()
        self._queues.setdefault(owner, deque()).append(woken)
        try:
            await woken.wait()
        except BaseException:
            if woken.is_set():
                hand_on()
            else:
                self._remove(owner, woken)
            raise

    def wake(self, skipped: set[Hashable] | None = None) -> Hashable | None:
        """Wake who waits for longest of the owner whose turn it is, and return that owner. None: nobody but `skipped` waits."""
        for owner, queue in self._queues.items():
            if skipped and owner in skipped:
                continue
            queue.popleft().set()
            if queue:
                self._queues.move_to_end(owner)
            else:
                del self._queues[owner]
            return owner
        return None

    def _remove(self, owner: Hashable, woken: anyio.Event) -> None:
        queue = self._queues[owner]
        queue.remove(woken)
        if not queue:
            del self._queues[owner]


class FairWork:
    """Runs pieces of work for owners, on the event loop or in `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._limiter = anyio.CapacityLimiter(threads)
        self._threads = threads
        self._in_threads: set[Hashable] = set()
        self._for_threads = RoundRobin()
        self._for_loop = RoundRobin()
        self._spent_s = 0.0
        self._woken = False
        self._turn_ends = False

    async def run(self, owner: Hashable, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which goes through `size` bytes."""
        if size > INLINE_BYTES:
            return await self._in_thread(owner, work)
        if self._spent_s >= BUDGET_S or self._for_loop:
            await self._for_loop.wait(owner, self._next)
            self._woken = False
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._spent_s += time.perf_counter() - started
            if not self._turn_ends:
                self._turn_ends = True
                asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_ends = False
        self._spent_s = 0.0
        if not self._woken:
            self._next()

    def _next(self) -> None:
        # Whoever is woken runs in the next turn of the loop, and asks for the one after it.
        self._woken = self._for_loop.wake() is not None

    async def _in_thread(self, owner: Hashable, work: Callable[[], T]) -> T:
        if owner in self._in_threads or len(self._in_threads) >= self._threads:
            await self._for_threads.wait(owner, lambda: self._free(owner))
        else:
            self._in_threads.add(owner)
        try:
            return await in_thread(work, limiter=self._limiter)
        finally:
            self._free(owner)

    def _free(self, owner: Hashable) -> None:
        self._in_threads.discard(owner)
        # A set of the owners that run, as a waiter of theirs is passed over for now.
        if (woken := self._for_threads.wake(self._in_threads)) is not None:
            self._in_threads.add(woken)
