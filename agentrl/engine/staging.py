"""New weights are copied into shared memory before a pause, so that the pause is as long as the swap and not as the copy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.to_thread import run_sync as in_thread

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@asynccontextmanager
async def staged(checkpoint: Path) -> AsyncIterator[Path]:
    """A copy of the directory `checkpoint` in shared memory, for the length of the context.

    `checkpoint` itself where it lies there already, where there is no shared memory or too little, and where it is no
    directory: then the server that is to read it says so.
    """
    copy = await in_thread(_copy, checkpoint)
    try:
        yield copy or checkpoint
    finally:
        if copy is not None:
            with anyio.CancelScope(shield=True):
                await in_thread(shutil.rmtree, copy, True)


def _copy(checkpoint: Path) -> Path | None:
    resolved = checkpoint.resolve()
    if not os.access(SHARED_MEMORY, os.W_OK) or SHARED_MEMORY in resolved.parents or not resolved.is_dir():
        return None
    files = [file for file in resolved.iterdir() if file.suffix in (".safetensors", ".json")]
    if 2 * sum(file.stat().st_size for file in files) > shutil.disk_usage(SHARED_MEMORY).free:
        return None
    copy = Path(tempfile.mkdtemp(prefix="agentrl-staged-", dir=SHARED_MEMORY))
    for file in files:
        shutil.copy(file, copy)
    return copy
