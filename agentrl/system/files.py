"""Files that last, files that are there whole or not at all, and files for their owner alone.

A power cut leaves what was synced: the content of a file with the file, its name with its folder. Neither follows from the other, and
nothing follows from their order: a name may be on the disk before the content that it names, and the other way round.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import anyio

from agentrl.system.tasks import in_thread


def sync(path: Path) -> None:
    """Return when the disk holds the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Return when the disk holds all that is in a folder, at any depth. The folder's own name is its parent's matter."""
    for folder, _, files in os.walk(directory):
        for name in (*files, "."):
            sync(Path(folder, name))


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, each with its name on the disk.

    Args:
        path: The folder; one that is there keeps its mode.
        mode: The mode of a new one.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def private(path: str, flags: int) -> int:
    """Return a descriptor of a file that only its owner can read, and that is no symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file that only its owner can read."""
    return open(path, mode, opener=private)


def partial_path(path: Path) -> Path:
    """Return where something lies while it is made. A crash may leave it there."""
    return path.with_name(path.name + ".partial")


def put_in_place(path: Path) -> None:
    """Give the file at `partial_path(path)` its name. It stays when this returns."""
    sync(partial_path(path))
    partial_path(path).replace(path)
    sync(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a file for its owner alone, so that it is there whole, or as it was before, and stays when this returns."""
    with open_private(partial_path(path), "w") as file:
        file.write(text)
    put_in_place(path)


@contextmanager
def atomic_dir(directory: Path) -> Iterator[Path]:
    """Yield a new directory, which gets its name at the end of the context, in place of what has that name.

    Where the context fails, nothing is left of it. Who needs it to survive a power cut syncs what is in it, and then the directory
    that holds it.
    """
    partial = partial_path(directory)
    shutil.rmtree(partial, ignore_errors=True)
    make_directory(partial)
    try:
        yield partial
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # where there was no room, half of it takes what is left
        raise


@asynccontextmanager
async def scratch_directory(
    prefix: str, *, kept_after: tuple[type[Exception], ...] = (), within: Path | None = None
) -> AsyncIterator[Path]:
    """Make a temporary directory whose name begins with `prefix`, for the length of the context. Only its owner may read it.

    Args:
        prefix: How its name begins.
        within: The folder that it is made in, if not that of temporary files.
        kept_after: Errors whose messages name a file in it: it stays where the context ends with one of them.
    """
    folder = Path(await in_thread(lambda: tempfile.mkdtemp(prefix=prefix, dir=within)))
    kept = False
    try:
        yield folder
    except Exception as error:
        kept = ExceptionGroup("", [error]).subgroup(lambda one: isinstance(one, kept_after)) is not None
        raise
    finally:
        if not kept:
            with anyio.CancelScope(shield=True):
                await in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))
