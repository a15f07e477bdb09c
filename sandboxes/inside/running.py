"""A program that was started and has not ended, as the first process knows it."""

from __future__ import annotations

import os
import time
from typing import Any

STALL_S = 0.1
"""A look that is so much too late shows that the machine had no time for the sandbox."""
MAX_FORGIVEN_S = 5.0
"""So much longer may a run take because of the machine. The host gives it up 10 s after its limit."""


class Running:
    """A program that was started and has not ended."""

    def __init__(
        self,
        number: int,
        pid: int,
        request: dict[str, Any],
        *,
        pipes: dict[int, bytes],
        stdin: int | None,
        cpu_base: float,
    ) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.pipes = pipes  # read end -> kind of frame
        self.stdin = stdin  # write end of a pipe; None when stdin was given whole
        self.interactive = stdin is not None
        self.pending = b""
        self.input_ended = False
        self.limits: dict[str, Any] = request["limits"]
        self.started = time.monotonic()
        self.ends_at: float = self.started + self.limits["timeout_s"]
        self.waited_s = 0.0
        # A run whose time was over before its turn came is cut off at once, whatever the machine does.
        self.forgivable_s = MAX_FORGIVEN_S if self.limits["timeout_s"] > 0 else 0.0
        self.cpu_base = cpu_base
        self.output = 0
        self.ended_by: str | None = None

    def over(self, now: float, late_s: float) -> bool:
        """Return whether its time is up: the clock stands still while the machine has no core for it, or for the whole sandbox.

        `late_s` is how much later than it was due this look at it comes.
        """
        if late_s > STALL_S:
            self.forgive(late_s)
        if now > self.ends_at:
            waited_s = waited_for_a_core_s(self.pid)
            self.forgive(waited_s - self.waited_s)
            self.waited_s = waited_s
        return now > self.ends_at

    def forgive(self, lost_s: float) -> None:
        """Put its end off by a time that was not its own."""
        lost_s = min(lost_s, self.forgivable_s)
        self.forgivable_s -= lost_s
        self.ends_at += lost_s


def waited_for_a_core_s(pid: int) -> float:
    """Return how long a process was ready to run and did not (`/proc/PID/schedstat`); 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
