"""A clock that stands while the process is stopped: by Ctrl-Z, `docker pause`, a debugger, or a machine without time for it.

A thread looks at the clock again and again. Where it has not looked for `ALLOWED_S`, the process did not run, and the time until it
looks again is left out. Code that blocks the event loop does not keep the thread from looking: its time counts.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic

LOOKS_EVERY_S = 0.2
ALLOWED_S = 2.0
"""Time without a look that still counts."""


class RunningTime:
    """Seconds, from any start, in which this process ran. It never goes back."""

    def __init__(self) -> None:
        self._seen = (monotonic(), 0.0)
        """When the thread looked last, and how much time was left out until then."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="agentrl clock", daemon=True)
        with suppress(RuntimeError):  # no room for a thread: all time counts
            self._thread.start()

    def now(self) -> float:
        """Return the time."""
        now = monotonic()
        seen, left_out = self._seen
        if now > seen + ALLOWED_S and self._thread.is_alive():
            return seen + ALLOWED_S - left_out
        return now - left_out

    def stop(self) -> None:
        """End the thread. From now on all time counts."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOKS_EVERY_S):
            now = monotonic()
            seen, left_out = self._seen
            self._seen = now, left_out + max(0.0, now - seen - ALLOWED_S)
