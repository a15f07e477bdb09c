"""The files of a sandbox, read and written for the host by the sandbox's first process."""

from __future__ import annotations

import json
import os
import stat


def open_below(work: str, path: str, flags: int, mode: int = 0) -> int:
    """Open a file without following any link, so that no path leads out of the folders it names."""
    parts = [part for part in os.path.normpath(os.path.join(work, path)).split("/") if part]
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            if flags & os.O_CREAT:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except OSError:
                    pass
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    finally:
        os.close(folder)


def write(work: str, path: str, mode: int, data: bytes | memoryview) -> None:
    """Write a regular file, and the folders above it.

    Raises:
        OSError: There is something else than a regular file, or it cannot be written.
    """
    fd = open_below(work, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("not a regular file")
        os.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def read(work: str, payload: bytes) -> bytes:
    """Return the regular file that `payload` names.

    Raises:
        OSError: It is no regular file, or larger than the host takes.
    """
    request = json.loads(payload)
    with os.fdopen(open_below(work, request["path"], os.O_RDONLY), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError("not a regular file")
        if info.st_size > request["max_bytes"]:
            raise OSError(f"{info.st_size} bytes, more than max_bytes = {request['max_bytes']}")
        return file.read(request["max_bytes"])


def pack(work: str, max_bytes: int) -> bytes:
    """Return a tar archive of everything under `work`, whose files have so many bytes at most.

    They count as long as they claim to be: a hole takes no room until somebody reads it.

    Raises:
        OSError: It would be too large: holes in files are written out.
    """
    import io
    import tarfile

    buffer, size = io.BytesIO(), 0
    opened: list[tuple[str, int]] = []
    """What its owner had taken every right from, and the rights that it has again at the end."""
    try:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            left = [(os.path.join(work, name), name) for name in sorted(os.listdir(work), reverse=True)]
            while left:
                path, name = left.pop()
                if stat.S_ISSOCK(os.lstat(path).st_mode):  # no archive can hold one
                    continue
                member = archive.gettarinfo(path, name)
                size += member.size
                if size > max_bytes:
                    raise OSError(f"the files have {size} bytes and more, more than a snapshot holds ({max_bytes})")
                needed = 0o400 if member.isreg() else 0o500 if member.isdir() else 0
                if member.mode & needed != needed:
                    opened.append((path, member.mode))
                    os.chmod(path, member.mode | needed)
                if member.isreg():
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    with os.fdopen(os.open(path, flags), "rb") as file:
                        if (
                            opened and opened[-1][0] == path
                        ):  # at once: it may have another name, which is still to come
                            os.chmod(*opened.pop())
                        archive.addfile(member, file)
                    continue
                archive.addfile(member)
                if member.isdir():
                    left += [
                        (os.path.join(path, below), f"{name}/{below}")
                        for below in sorted(os.listdir(path), reverse=True)
                    ]
    finally:
        for path, mode in reversed(opened):
            os.chmod(path, mode)
    return buffer.getvalue()


def unpack(work: str, payload: bytes) -> None:
    """Put the files of an archive under `work`."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        archive.extractall(work)


def wipe(folders: list[str]) -> None:
    """Empty the writable folders.

    Raises:
        OSError: Something cannot be removed.
        RuntimeError: Something cannot be removed.
    """
    for folder in folders:
        if os.stat(folder).st_uid == os.getuid():
            os.chmod(folder, 0o1777)  # its owner may have taken every right from it
        for entry in os.scandir(folder):
            remove(entry)


def remove(entry: os.DirEntry[str]) -> None:
    """Remove an entry of a folder, with all that is in it."""
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.path)
        return
    os.chmod(entry.path, 0o700)  # its owner may have taken every right from it
    for below in os.scandir(entry.path):
        remove(below)
    os.rmdir(entry.path)
