"""New weights are copied into shared memory before a pause, so that the pause is as long as the swap and not as the copy."""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio

from agentrl.system.locks import SHARED_MEMORY, room_in_shared_memory, shared_memory_directory
from agentrl.system.tasks import in_thread

log = logging.getLogger(__name__)


@asynccontextmanager
async def staged(checkpoint: Path) -> AsyncIterator[Path]:
    """Hold a copy of the directory `checkpoint` in shared memory, for the length of the context.

    `checkpoint` itself where it lies there already, where there is no shared memory or too little, and where it is no
    directory: then the server that is to read it says so.
    """
    copied = ExitStack()
    try:
        yield await in_thread(_copy, checkpoint, copied)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(copied.close)


def _copy(checkpoint: Path, copied: ExitStack) -> Path:
    resolved = checkpoint.resolve()
    if SHARED_MEMORY in resolved.parents or not resolved.is_dir():
        return checkpoint
    try:
        files = [file for file in resolved.iterdir() if file.suffix in (".safetensors", ".json")]
        if not room_in_shared_memory(2 * sum(file.stat().st_size for file in files)):
            return checkpoint
        copy = copied.enter_context(shared_memory_directory())
        for file in files:
            shutil.copy(file, copy)
    except OSError as error:  # others fill shared memory meanwhile
        log.warning("%s is read from where it lies, it cannot be copied into shared memory: %s", checkpoint, error)
        copied.close()
        return checkpoint
    return copy
