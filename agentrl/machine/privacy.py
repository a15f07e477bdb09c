"""Keep what a run stores to its user alone: files that nobody else can read, and texts without keys."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO, Any


def private(path: str, flags: int) -> int:
    """Return a descriptor of a file that only its owner can read, and that is no symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file that only its owner can read."""
    return open(path, mode, opener=private)


def without_secrets(text: str, instead: str = "") -> str:
    """Return a text in which URLs have lost the user and password that they name, or have `instead` for them."""
    return re.sub(r"(?<=://)[^/@\s'\"]+@", instead, text)
