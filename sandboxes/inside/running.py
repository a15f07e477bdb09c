"""A program that was started and has not ended, as the first process knows it."""

from __future__ import annotations

import os
import time
from typing import Any


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
        self.cpu_base = cpu_base
        self.output = 0
        self.ended_by: str | None = None
