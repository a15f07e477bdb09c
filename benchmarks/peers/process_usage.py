"""CPU time and memory of a process with all that it starts, by the clock."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

EVERY_S = 0.25


class Usage(NamedTuple):
    """What a tree of processes had used at a time."""

    at: float
    """Seconds since the epoch, as a file's time of change."""
    cpu_s: float
    """User and system, of processes that have ended too."""
    memory: int
    """Bytes; what processes share is counted once."""


class UsageMonitor:
    """Samples a process and its descendants until `stop`. A process that lives for less than a sample's interval may be missed."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Usage] = []
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            with suppress(psutil.Error):
                self._sample()

    def _sample(self) -> None:
        memory = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                memory += process.memory_full_info().pss
        self.samples.append(Usage(time.time(), sum(self._cpu_s.values()), memory))

    def stop(self) -> None:
        """Take no more samples."""
        self._ended.set()
        self._thread.join()

    def until(self, at: float) -> tuple[float, int]:
        """(CPU seconds, peak memory in bytes) until a time."""
        samples = [sample for sample in self.samples if sample.at <= at] or self.samples[:1]
        return samples[-1].cpu_s, max(sample.memory for sample in samples)
