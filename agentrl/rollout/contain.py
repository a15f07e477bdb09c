"""Run code of the user's in a task of its own, so that whatever it ends with is a value, and so that it can be left behind.

    contained(call) ──► a task that catches everything ──► Ended(value) or Ended(error)
         │ the time is up, or the caller is cancelled
         ▼
    task.cancel(), CANCELS times over `cancel_timeout_s` ──► Ended(timed_out)
         │ it still runs
         ▼
    abandoned: Ended(timed_out, hangs_at)

The caller's task waits for an event and nothing else, so a cancellation that it sees is always its own. What the code
cancels, raises, or leaves open (its own task, a cancel scope, SystemExit) stays in the other task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from agentrl.concurrency.event_loop import leave_behind
from agentrl.reporting.code_place import place_of_task
from agentrl.reporting.logger import logger

log = logger(__name__)
T = TypeVar("T")

CANCELS = 3
"""How often a task is told to end before it is abandoned: code that tries again after any error survives the first."""


@dataclass(frozen=True)
class Ended(Generic[T]):
    """The end of a contained call: with a value, with an error, or none yet."""

    value: T | None = None
    error: BaseException | None = None
    timed_out: bool = False
    """Whether it had to be cancelled."""
    hangs_at: str | None = None
    """Where an abandoned call waits, as `FILE:LINE in NAME`. None: the call has ended."""


@dataclass
class Abandoned:
    """Tasks that did not end when they were cancelled."""

    places: dict[str, int] = field(default_factory=dict)
    """How many hung at each place."""

    def add(self, task: asyncio.Task[None]) -> str:
        """Leave a task behind, so that nothing waits for it any more; returns where it hangs."""
        place = place_of_task(task)
        leave_behind(task)
        self.places[place] = self.places.get(place, 0) + 1
        if self.places[place] == 1:
            log.warning("abandoned: %s ignores its cancellation. It runs on, and cannot call the model any more", place)
        return place


async def contained(
    call: Callable[[], Awaitable[T]], *, timeout_s: float, cancel_timeout_s: float, abandoned: Abandoned
) -> Ended[T]:
    """Await `call()` in a task of its own. Raises nothing but the cancellation of the caller, which ends the task first.

    Args:
        call: the code; it may raise anything.
        timeout_s: bound of the call; then it is cancelled.
        cancel_timeout_s: how long it may take to end once it is cancelled; then it is abandoned.
        abandoned: where it is noted if it does not end.
    """
    values: list[T] = []
    errors: list[BaseException] = []

    async def run() -> None:
        # Everything, and inside the task: the event loop ends with a task that ends with SystemExit or KeyboardInterrupt.
        try:
            values.append(await call())
        except BaseException as error:
            errors.append(error)

    task = asyncio.create_task(run())
    ended = asyncio.Event()
    task.add_done_callback(lambda _: ended.set())
    hangs_at: str | None = None
    timed_out = True
    try:
        with anyio.move_on_after(timeout_s):
            await ended.wait()
            timed_out = False
    finally:
        if not task.done():
            await _cancel(task, ended, cancel_timeout_s)
        if not task.done():
            hangs_at = abandoned.add(task)
    if hangs_at is not None:
        return Ended(timed_out=timed_out, hangs_at=hangs_at)
    if values:
        return Ended(values[0], timed_out=timed_out)
    return Ended(error=errors[0] if errors else asyncio.CancelledError(), timed_out=timed_out)


async def _cancel(task: asyncio.Task[None], ended: asyncio.Event, timeout_s: float) -> None:
    """Tell a task to end, more than once, and wait for it."""
    with anyio.CancelScope(shield=True):
        for _ in range(CANCELS):
            task.cancel()
            with anyio.move_on_after(timeout_s / CANCELS):
                await ended.wait()
            if task.done():
                return
