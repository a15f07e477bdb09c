"""The files of a sandbox, read and written for the host by the first process, which has no more rights than its programs."""

from __future__ import annotations

import os
import stat


def write(path: str, data: bytes | memoryview) -> None:
    """Write a regular file, and the folders above it. A relative path is under the user's folder.

    Raises:
        OSError: There is something else than a regular file, or it cannot be written.
    """
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb", 0) as file:
        _check_regular(fd)
        os.ftruncate(fd, 0)
        os.fchmod(fd, 0o644)
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]


def read(path: str, max_bytes: int) -> bytes:
    """Return a regular file.

    Raises:
        OSError: It is no regular file, or larger than `max_bytes`.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        size = _check_regular(file.fileno())
        if size > max_bytes:
            raise OSError(f"{size} bytes, more than max_bytes = {max_bytes}")
        return file.read(max_bytes)


def _check_regular(fd: int) -> int:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise OSError("not a regular file")
    return info.st_size


def wipe(folders: list[str]) -> None:
    """Empty the writable folders. What is in a folder moves up before it is removed, so that no depth and no length of a path is too much.

    Raises:
        OSError: Something cannot be removed.
    """
    moved = 0
    for top in folders:
        if os.stat(top).st_uid == os.getuid():
            os.chmod(top, 0o1777)  # its owner may have taken every right from it
        while names := os.listdir(top):
            prefix = f"{top}/{os.urandom(8).hex()}"
            for path in (os.path.join(top, name) for name in names):
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    continue
                os.chmod(path, 0o700)
                for below in os.scandir(path):
                    if below.is_dir(follow_symlinks=False):
                        os.chmod(below.path, 0o700)  # to be moved, a folder must be writable
                    os.rename(below.path, f"{prefix}{moved}")
                    moved += 1
                os.rmdir(path)
