"""How deep calls between the two sides go, each from within the last."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LARGEST_DEPTH = 200
OWN_FRAMES = 30
"""More than our own code takes on one side between a call and the next from within it."""


@contextmanager
def deeper() -> Iterator[None]:
    """Leave to a program's own code the depth that our code takes of Python's stack."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + OWN_FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
