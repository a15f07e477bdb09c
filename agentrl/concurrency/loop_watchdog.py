"""Watch the event loop from a thread: say which line blocks it, and measure how late it was.

Everything in the main process waits for a workflow that calls `time.sleep(30)`: the other episodes, the proxy, the signals. One
that asks the proxy with a client that is not asynchronous waits for itself, for ever. A loop that is blocked cannot say so. It is
blocked when one step of it, from one callback's start to its end, lasts long by the clock and by the looks of the thread; many
short steps, or a machine without time for this process, are not a line's fault.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from asyncio import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from agentrl.reporting.code_place import place_of
from agentrl.reporting.logger import logger

log = logger(__name__)

BEAT_S = 0.1
"""Time between two beats of the loop, and between two looks of the thread."""
BLOCKED_AFTER_S = 1.0
"""A step that lasts so long blocks the loop."""
_RUN_HANDLE = Handle._run.__code__


@dataclass(eq=False)
class LoopWatchdog:
    """The state of the loop that `watch_loop` watches."""

    loop: asyncio.AbstractEventLoop
    thread_id: int
    blocked_after_s: float
    blocked: dict[str, int] = field(default_factory=dict)
    """How often the loop was blocked at each place."""
    _beat_at: float = field(default_factory=time.monotonic)
    _step: weakref.ref[Handle] | None = None
    """The step that was seen at the last look."""
    _step_since: float = 0.0
    _step_looks: int = 0
    """Looks at that step since then; -1: it was reported."""
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
            return
        self._step_looks += 1
        if lasted < self.blocked_after_s or self._step_looks * BEAT_S < self.blocked_after_s / 2:
            return
        self._step_looks = -1
        place = place_of(frames)
        self.blocked[place] = self.blocked.get(place, 0) + 1
        if self.blocked[place] == 1:
            log.warning(
                "%s blocks the event loop, for %.1f s by now, and with it every episode. Await an asynchronous call there, such as one of "
                "episode.client, or `asyncio.to_thread(...)`. A client that is not asynchronous waits for ever: its server is in this loop",
                place,
                lasted,
            )


def _step_of(frame: FrameType | None) -> tuple[Handle | None, list[FrameType]]:
    """Return the step of the loop that `frame` is in, with its frames from outside in; None: the loop waits."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not _RUN_HANDLE:
        frames.insert(0, frame)
        frame = frame.f_back
    return (None, []) if frame is None else (frame.f_locals["self"], frames)


@contextmanager
def watch_loop(blocked_after_s: float = BLOCKED_AFTER_S) -> Iterator[LoopWatchdog]:
    """Watch the running event loop for the length of the context.

    Each place that blocks the loop is logged once, and at the end how often those did that did so again.

    Args:
        blocked_after_s: Seconds that a step takes from which on it blocks the loop.

    Yields:
        The watchdog, which counts.
    """
    watchdog = LoopWatchdog(asyncio.get_running_loop(), threading.get_ident(), blocked_after_s)
    ended = threading.Event()

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
        for place, count in watchdog.blocked.items():
            if count > 1:
                log.warning("%s blocked the event loop %d times", place, count)
