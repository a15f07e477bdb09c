"""Run code of the user's in a task of its own, so that its end is a value, and so that it can be left behind.

    run_isolated(call) ──► a task that catches everything ──► CallResult(value) or CallResult(error)
         │ the time is up, or the caller is cancelled
         ▼
    task.cancel(), CANCELS times over `cancel_timeout_s` ──► CallResult(error, TIMEOUT)
         │ it still runs
         ▼
    left behind: CallResult(error, HUNG)

The caller's task waits for an event and nothing else, so a cancellation that it sees is always its own. What the code
cancels, raises, or leaves open (its own task, a cancel scope, SystemExit) stays in the other task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from agentrl.errors import EpisodeError, EpisodeTimeoutError
from agentrl.record.end_reason import EndReason, reason_of
from agentrl.system.event_loop import leave_behind
from agentrl.system.failure_text import place_of_task

log = logging.getLogger(__name__)
T = TypeVar("T")

CANCELS = 3
"""How often a task is told to end before it is left behind: code that tries again after any error survives the first."""

LOOK_EVERY_S = 0.05
"""How long to wait at least before a clock that stands still is read again."""


@dataclass(frozen=True)
class CallResult(Generic[T]):
    """The end of an isolated call: with a value, or with an error and the reason that it is."""

    value: T | None = None
    error: BaseException | None = None
    reason: EndReason = EndReason.FINISHED


async def run_isolated(
    call: Callable[[], Awaitable[T]],
    what: str,
    limit: str,
    timeout_s: float,
    *,
    reason: EndReason | None = None,
    cancel_timeout_s: float,
    hanging: set[str],
    clock: Callable[[], float] = time.monotonic,
) -> CallResult[T]:
    """Await `call()` in a task of its own. Raises nothing but the cancellation of the caller, which ends the task first.

    Args:
        call: The code; it may raise anything.
        what: What errors call it.
        limit: What errors say of `timeout_s`: the field of the configuration that it is of, or what to do.
        timeout_s: Bound of the call; then it is cancelled.
        reason: What its failure is, unless it hangs. Default: what `reason_of` says of its error.
        cancel_timeout_s: How long it may take to end once it is cancelled; then it is left behind.
        hanging: The places where calls hang, to which this one is added if it does not end. The log names each once.
        clock: What `timeout_s` goes by; it may stand still for a while.
    """
    ends: list[CallResult[T]] = []

    async def run() -> None:
        # Everything, and inside the task: the event loop ends with a task that ends with SystemExit or KeyboardInterrupt.
        try:
            ends.append(CallResult(await call()))
        except BaseException as raised:
            ends.append(CallResult(error=raised, reason=reason or reason_of(raised)))

    task = asyncio.create_task(run())
    hangs_at: str | None = None
    deadline = clock() + timeout_s
    try:
        while not task.done() and (left := deadline - clock()) > 0:
            await asyncio.wait([task], timeout=max(left, LOOK_EVERY_S))
    finally:
        timed_out = not task.done()
        with anyio.CancelScope(shield=True):
            for _ in range(CANCELS):
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=cancel_timeout_s / CANCELS)
        if not task.done():
            hangs_at = place_of_task(task)
            leave_behind(task)
            if hangs_at not in hanging:
                hanging.add(hangs_at)
                log.warning(
                    "hung: %s ignores its cancellation. It runs on, and cannot call the model any more", hangs_at
                )
    ended = ends[0] if ends else CallResult[T]()
    if timed_out:
        late = f"{what} took longer than {limit}"
        if hangs_at is not None:
            late += (
                f", and {cancel_timeout_s:g} s after it was cancelled it still hung at {hangs_at}: it was left behind"
            )
        return _failure(EpisodeTimeoutError(late), ended, EndReason.HUNG if hangs_at else reason or EndReason.TIMEOUT)
    if not ends or isinstance(ended.error, asyncio.CancelledError):  # it may be cancelled before it begins
        own = EpisodeError(f"{what} cancelled itself: its own code raised CancelledError, or cancelled its task")
        return _failure(own, ended, reason or EndReason.CANCELLED)
    return ended


def _failure(error: EpisodeError, ended: CallResult[T], reason: EndReason) -> CallResult[T]:
    error.__cause__ = ended.error
    return CallResult(error=error, reason=reason)
