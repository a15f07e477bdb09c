"""A digest of a folder's content: the same content has the same digest on every machine."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from agentrl.errors import TaskFileError


def folder_digest(folder: Path | None, also: Iterable[str] = (), without: Collection[str] = ()) -> str:
    """Return a digest of the paths, modes and contents below a folder, if there is one, and of further texts.

    Args:
        folder: The folder.
        also: The texts.
        without: Names right in the folder that are left out.

    Raises:
        TaskFileError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for text in also:
        digest.update(f"{len(text)}:{text}".encode())
    if folder is None:
        return digest.hexdigest()[:16]
    try:
        for path in sorted(folder.rglob("*")):
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode) or path.relative_to(folder).parts[0] in without:
                continue
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                raise TaskFileError(f"{path} is no file, folder or link; take it out")
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            head = f"{path.relative_to(folder)}\0{path.is_symlink()}\0{bool(info.st_mode & 0o100)}\0{len(content)}\0"
            digest.update(head.encode(errors="surrogateescape") + content)
    except OSError as error:
        raise TaskFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]
