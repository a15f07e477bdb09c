"""A directory for what is needed only as long as something goes on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from agentrl.concurrency.threads import in_thread


@asynccontextmanager
async def scratch_directory(prefix: str, *, kept_after: tuple[type[Exception], ...] = ()) -> AsyncIterator[Path]:
    """Make a temporary directory whose name begins with `prefix`, for the length of the context. Nobody else may read it.

    Args:
        prefix: How its name begins.
        kept_after: Errors whose messages name a file in it: it stays where the context ends with one of them.
    """
    folder = Path(await in_thread(lambda: tempfile.mkdtemp(prefix=prefix)))
    kept = False
    try:
        yield folder
    except Exception as error:
        kept = _is_or_holds(error, kept_after)
        raise
    finally:
        if not kept:
            with anyio.CancelScope(shield=True):
                await in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))


def _is_or_holds(error: Exception, kinds: tuple[type[Exception], ...]) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(kinds) is not None if kinds else False
    return isinstance(error, kinds)
