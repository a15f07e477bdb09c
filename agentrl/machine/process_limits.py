"""The limits of this process, on open files, threads and shared memory, beside what a run needs."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
RESERVED_FILES = 96
"""Open files for the store, logs, listeners, control calls, child processes, and what libraries open."""
FILES_AN_EPISODE = 4
"""A connection to the engine, both ends of one from an agent, and what its environment holds."""
MIN_STREAMS = 8


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or hard == resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # a container may forbid what its limits allow
            pass
    return soft


def streams_within_limits() -> int:
    """Return how many replies may be streamed at the same time: half of the open files that are left, the rest is for their agents."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**20 if limit == resource.RLIM_INFINITY else max(MIN_STREAMS, (limit - RESERVED_FILES) // 2)


def shortages(episodes: int) -> Iterator[str]:
    """Raise the limit of open files as far as it goes; yield a warning where it is too low for so many episodes at once."""
    files, needed = raise_file_limit(), RESERVED_FILES + FILES_AN_EPISODE * episodes
    if files != resource.RLIM_INFINITY and files < needed:
        yield (
            f"{episodes} episodes at once may need {needed:,} open files, and this process may have {files:,}: at most "
            f"{streams_within_limits()} replies are generated at the same time. Raise the limit (ulimit -n {needed}), or lower "
            "rollout.max_concurrent"
        )


def room_in_shared_memory(needed: int) -> bool:
    """Whether there is shared memory that takes `needed` bytes."""
    return os.access(SHARED_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed
