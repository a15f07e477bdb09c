"""A directory for what is needed only as long as something goes on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from agentrl.concurrency.threads import in_thread


@asynccontextmanager
async def scratch_directory(prefix: str) -> AsyncIterator[Path]:
    """Make a temporary directory whose name begins with `prefix`, for the length of the context."""
    folder = await in_thread(lambda: tempfile.TemporaryDirectory(prefix=prefix))
    try:
        yield Path(folder.name)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(folder.cleanup)
