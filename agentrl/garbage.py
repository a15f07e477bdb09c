"""Python's search for reference cycles, in a process that has loaded what it needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """Search now, and leave all that is there out of every search within the context: one that looks at each object of all modules
    and of a tokenizer holds the event loop up for a fifth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
