"""Sync files and folders: a power cut leaves what was synced, the content of a file with the file, its name with its folder.

Neither follows from the other, and nothing follows from their order: a name may be on the disk before the content that it
names, and the other way round.
"""

from __future__ import annotations

import os
from pathlib import Path


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
        for name in files:
            sync(Path(folder) / name)
        sync(Path(folder))


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
