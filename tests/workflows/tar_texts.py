"""Texts in a tar archive, and out of it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def pack(files: Mapping[str, str]) -> bytes:
    """An archive as a sandbox's snapshot has it, with folders of their own."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    return result.getvalue()


def texts(archive: bytes) -> dict[str, str]:
    """The files of an archive."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for one in packed:
            if (data := packed.extractfile(one)) is not None:
                found[one.name] = data.read().decode()
    return found
