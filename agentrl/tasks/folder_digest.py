"""A digest of a folder's content: the same content has the same digest on every machine."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from agentrl.errors import TaskFileError

PART = 2**20


def folder_digest(folder: Path) -> str:
    """Return a digest of the paths, modes and contents below a folder.

    Raises:
        TaskFileError: A file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.rglob("*")):
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode):
                continue
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                raise TaskFileError(f"{path} is no file, folder or link; take it out")
            target = os.fsencode(os.readlink(path)) if path.is_symlink() else None
            size = info.st_size if target is None else len(target)
            head = f"{path.relative_to(folder)}\0{target is not None}\0{bool(info.st_mode & 0o100)}\0{size}\0"
            digest.update(head.encode(errors="surrogateescape"))
            if target is not None:
                digest.update(target)
                continue
            with path.open("rb") as file:
                while part := file.read(PART):
                    digest.update(part)
    except OSError as error:
        raise TaskFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]
