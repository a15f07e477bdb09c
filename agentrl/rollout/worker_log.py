"""The log of one worker process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentrl.concurrency.threads import in_thread

LOG_TAIL_BYTES = 4096
"""How much of its end is shown."""


@dataclass(frozen=True)
class WorkerLog:
    """A worker's log, from where its process began to write it."""

    path: Path
    start: int

    async def tail(self) -> str:
        """Its last lines."""
        try:
            return await in_thread(self._read)
        except OSError as error:
            return f"it cannot be read: {error.strerror}"

    def _read(self) -> str:
        with self.path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.start, end - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()


def open_worker_log(path: Path) -> WorkerLog:
    """Open the log of a worker that is about to start. Raises OSError."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        return WorkerLog(path, os.lseek(file, 0, os.SEEK_END))
    finally:
        os.close(file)
