"""Watch the event loop from a thread: name the line that blocks it, and measure how late it was.

Everything in the main process waits for a workflow that calls `time.sleep(30)`: the other episodes, the proxy, the signals. One
that asks the proxy with a client that is not asynchronous waits for itself, for ever. A loop that is blocked cannot say so. It is
blocked when one step of it, from one callback's start to its end, lasts long; many short steps are not a line's fault.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from asyncio import Handle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agentrl.system.failure_text import place_of

log = logging.getLogger(__name__)

BEAT_S = 0.1
"""Time between two beats of the loop, and between two looks of the thread."""
BLOCKED_AFTER_S = 1.0
"""A step that lasts so long blocks the loop."""
_RUN_HANDLE = Handle._run.__code__


class LoopWatchdog:
    """The state of the loop that `watch_loop` watches."""

    def __init__(self) -> None:
        self.blocked: Counter[str] = Counter()
        """How often the loop was blocked at each place."""
        self._max_lag_s = 0.0

    def take_max_lag_s(self) -> float:
        """Return by how much the loop was late at most since the last call."""
        lag, self._max_lag_s = self._max_lag_s, 0.0
        return lag

    async def beat(self) -> None:
        """Measure, again and again, how late the loop turns."""
        while True:
            due = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._max_lag_s = max(self._max_lag_s, time.monotonic() - due)

    def look(self, thread_id: int, blocked_after_s: float, ended: threading.Event) -> None:
        """Warn of each place that blocks the loop of a thread, until the event is set. Called in another thread."""
        step, since, reported = None, 0.0, False
        while not ended.wait(BEAT_S):
            found, frames = _step_of(sys._current_frames().get(thread_id))
            if found is None or found is not step:
                step, since, reported = found, time.monotonic(), False
            elif not reported and time.monotonic() - since >= blocked_after_s:
                reported, place = True, place_of(frames)
                self.blocked[place] += 1
                if self.blocked[place] == 1:
                    log.warning(
                        "%s blocks the event loop, for %.1f s by now, and with it every episode. Await an asynchronous call there, such as "
                        "one of episode.client, or `asyncio.to_thread(...)`; make a client of your own once, and not in each episode. A client "
                        "that is not asynchronous waits for ever: its server is in this loop",
                        place,
                        time.monotonic() - since,
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
    watchdog, ended = LoopWatchdog(), threading.Event()
    watched = threading.get_ident(), blocked_after_s, ended
    threading.Thread(target=watchdog.look, args=watched, name="agentrl loop watchdog", daemon=True).start()
    beating = asyncio.get_running_loop().create_task(watchdog.beat())
    try:
        yield watchdog
    finally:
        ended.set()
        beating.cancel()
        for place, count in watchdog.blocked.items():
            if count > 1:
                log.warning("%s blocked the event loop %d times", place, count)
