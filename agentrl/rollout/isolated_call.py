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
from typing import Any, Generic, TypeVar

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
    bound: str,
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
        bound: The field of the configuration that `timeout_s` is of.
        timeout_s: Bound of the call; then it is cancelled.
        reason: What its failure is, unless it hangs. Default: what `reason_of` says of its error.
        cancel_timeout_s: How long it may take to end once it is cancelled; then it is left behind.
        hanging: The places where calls hang, to which this one is added if it does not end. The log names each once.
        clock: What `timeout_s` goes by; it may stand still for a while.
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
    timed_out, deadline = True, clock() + timeout_s
    try:
        while timed_out and (left := deadline - clock()) > 0:
            with anyio.move_on_after(max(left, LOOK_EVERY_S)):
                await ended.wait()
                timed_out = False
    finally:
        if not task.done():
            await _cancel(task, ended, cancel_timeout_s)
        if not task.done():
            hangs_at = place_of_task(task)
            leave_behind(task)
            if hangs_at not in hanging:
                hanging.add(hangs_at)
                log.warning(
                    "hung: %s ignores its cancellation. It runs on, and cannot call the model any more", hangs_at
                )
    raised = errors[0] if errors else None if values else asyncio.CancelledError()
    if timed_out:
        late = f"{what} took longer than `{bound}` = {timeout_s:g} s"
        if hangs_at is not None:
            late += f", and `rollout.cancel_timeout_s` = {cancel_timeout_s:g} s after it was cancelled it still hung at {hangs_at}: it was left behind"
        return _failure(EpisodeTimeoutError(late), raised, EndReason.HUNG if hangs_at else reason or EndReason.TIMEOUT)
    if isinstance(raised, asyncio.CancelledError):
        own = EpisodeError(f"{what} cancelled itself: its own code raised CancelledError, or cancelled its task")
        return _failure(own, raised, reason or EndReason.CANCELLED)
    return CallResult(values[0]) if raised is None else CallResult(error=raised, reason=reason or reason_of(raised))


def _failure(error: EpisodeError, cause: BaseException | None, reason: EndReason) -> CallResult[Any]:
    error.__cause__ = cause
    return CallResult(error=error, reason=reason)


async def _cancel(task: asyncio.Task[None], ended: asyncio.Event, timeout_s: float) -> None:
    """Tell a task to end, more than once, and wait for it."""
    with anyio.CancelScope(shield=True):
        for _ in range(CANCELS):
            task.cancel()
            with anyio.move_on_after(timeout_s / CANCELS):
                await ended.wait()
            if task.done():
                return
