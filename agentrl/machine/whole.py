"""Files and directories that are there whole, or as they were before: made under another name, synced, and renamed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.machine.disk import make_directory, sync
from agentrl.machine.privacy import open_private


def partial_path(path: Path) -> Path:
    """Return where something lies while it is made. A crash may leave it there."""
    return path.with_name(path.name + ".partial")


def put_in_place(path: Path) -> None:
    """Give the file at `partial_path(path)` its name. It stays when this returns."""
    partial = partial_path(path)
    sync(partial)
    partial.replace(path)
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
