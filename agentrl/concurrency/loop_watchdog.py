"""Watch the event loop from a thread: say which line blocks it, and measure how late it was.

Everything in the main process waits for a workflow that calls `time.sleep(30)`: the other episodes, the proxy, the signals. One
that asks the proxy with a client that is not asynchronous waits for itself, for ever. A loop that is blocked cannot say so. It is
blocked when one step of it, from one callback's start to its end, lasts long by the clock and by the looks of the thread; many
short steps, or a machine without time for this process, are not a line's fault.

A line of the user's that blocks for `interrupt_after_s` is interrupted, by a signal whose handler raises there.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import weakref
from asyncio import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from agentrl.reporting.code_place import is_library, place_of
from agentrl.reporting.logger import logger

log = logger(__name__)

BEAT_S = 0.1
"""Time between two beats of the loop, and between two looks of the thread."""
BLOCKED_AFTER_S = 1.0
"""A step that lasts so long blocks the loop."""
INTERRUPT = signal.SIGRTMAX - 1
DEBUGGERS = ("pdb", "bdb", "pudb", "ipdb", "IPython", "pydevd", "_pydevd_bundle", "debugpy")
"""A step that waits in one of these modules waits for the user."""

_RUN_HANDLE = Handle._run.__code__
_interrupting: list[LoopWatchdog] = []
"""Watchdogs that may interrupt. The process has one handler for the signal: they share it."""


class LoopBlocked(BaseException):
    """Raised in a line that blocks the event loop. No Exception, which clients take for a failure to be tried again."""


@dataclass(eq=False)
class LoopWatchdog:
    """The state of the loop that `watch_loop` watches."""

    loop: asyncio.AbstractEventLoop
    thread_id: int
    blocked_after_s: float
    interrupt_after_s: float | None = None
    """None: never."""
    blocked: dict[str, int] = field(default_factory=dict)
    """How often the loop was blocked at each place."""
    _beat_at: float = field(default_factory=time.monotonic)
    _step: weakref.ref[Handle] | None = None
    """The step that was seen at the last look."""
    _step_since: float = 0.0
    _step_looks: int = 0
    """Looks at that step since then; -1: it was reported."""
    _sent: bool = False
    """Whether the signal that comes next is, for all that is known, this one's."""
    _max_lag_s: float = 0.0
    _next: asyncio.TimerHandle | None = None

    def take_max_lag_s(self) -> float:
        """Return by how much the loop was late at most since the last call."""
        lag, self._max_lag_s = self._max_lag_s, 0.0
        return lag

    def beat(self) -> None:
        """Note that the loop turns, and do so again and again."""
        now = time.monotonic()
        if self._next is not None:
            self._max_lag_s = max(self._max_lag_s, now - self._beat_at - BEAT_S)
        self._beat_at = now
        self._next = self.loop.call_later(BEAT_S, self.beat)

    def stop(self) -> None:
        """Beat no more."""
        if self._next is not None:
            self._next.cancel()

    def look(self) -> None:
        """Say where the loop is blocked, if it is; called in another thread, after each `BEAT_S`."""
        step, frames = _step_of(sys._current_frames().get(self.thread_id))
        if step is None:
            self._step = None
            return  # it waits
        now = time.monotonic()
        if self._step is None or self._step() is not step:
            self._step, self._step_since, self._step_looks = weakref.ref(step), now, 0
            return
        lasted = now - self._step_since
        if self._step_looks < 0:
            if self.interrupt_after_s is not None and lasted >= self.interrupt_after_s:
                self._step_since = now
                self._sent = True
                signal.pthread_kill(self.thread_id, INTERRUPT)
            return
        self._step_looks += 1
        if lasted < self.blocked_after_s or self._step_looks * BEAT_S < self.blocked_after_s / 2:
            return
        self._step_looks = -1
        place = place_of(frames)
        self.blocked[place] = self.blocked.get(place, 0) + 1
        if self.blocked[place] == 1:
            log.warning(
                "%s blocks the event loop, for %.1f s by now, and with it every episode. Await an asynchronous call there, or "
                "`asyncio.to_thread(...)`",
                place,
                lasted,
            )

    def interrupt(self, frame: FrameType | None) -> None:
        """Interrupt the step that blocks the loop, unless it has ended by now, or is no code of the user's.

        Args:
            frame: Where the main thread is.

        Raises:
            LoopBlocked: The step blocks the loop still.
        """
        sent, self._sent = self._sent, False
        if not sent:
            return
        step, frames = _step_of(frame)
        if step is None or self._step is None or self._step() is not step:
            return
        users = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
        if users and not any(str(f.f_globals.get("__name__")).partition(".")[0] in DEBUGGERS for f in frames):
            raise LoopBlocked(
                f"{place_of(frames)} blocked the event loop for {self.interrupt_after_s:g} s (`rollout.hang_timeout_s`), and with it "
                "every episode. Await an asynchronous call there, such as one of episode.client, or call `asyncio.to_thread(...)`"
            )


def _step_of(frame: FrameType | None) -> tuple[Handle | None, list[FrameType]]:
    """Return the step of the loop that `frame` is in, with its frames from outside in; None: the loop waits."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not _RUN_HANDLE:
        frames.insert(0, frame)
        frame = frame.f_back
    return (None, []) if frame is None else (frame.f_locals["self"], frames)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    for watchdog in [*_interrupting]:
        watchdog.interrupt(frame)


@contextmanager
def watch_loop(
    blocked_after_s: float = BLOCKED_AFTER_S, interrupt_after_s: float | None = None
) -> Iterator[LoopWatchdog]:
    """Watch the running event loop for the length of the context. Several may watch the same loop, and end in any order.

    Each place that blocks the loop is logged once, and at the end how often those did that did so again.

    Args:
        blocked_after_s: Seconds that a step takes from which on it blocks the loop.
        interrupt_after_s: Seconds after which a step of the user's code is interrupted, where the loop runs in the main thread;
            None: never.

    Yields:
        The watchdog, which counts.
    """
    watchdog = LoopWatchdog(asyncio.get_running_loop(), threading.get_ident(), blocked_after_s)
    ended = threading.Event()
    if interrupt_after_s is not None and threading.current_thread() is threading.main_thread():  # signals are its alone
        if not _interrupting:
            signal.signal(INTERRUPT, _interrupt)
        watchdog.interrupt_after_s = interrupt_after_s
        _interrupting.append(watchdog)

    def watch() -> None:
        while not ended.wait(BEAT_S):
            watchdog.look()

    watchdog.beat()
    threading.Thread(target=watch, name="agentrl loop watchdog", daemon=True).start()
    try:
        yield watchdog
    finally:
        ended.set()
        watchdog.stop()
        if watchdog in _interrupting:
            _interrupting.remove(watchdog)
            if not _interrupting:
                signal.signal(INTERRUPT, signal.SIG_IGN)  # the thread may be about to send one more
        for place, count in watchdog.blocked.items():
            if count > 1:
                log.warning("%s blocked the event loop %d times", place, count)
