"""Python's search for reference cycles, in a process that loads what it needs, and in one that has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import within the context what the process keeps until it ends.

    The garbage collector searches nothing meanwhile, and what was imported never again. Of the time that it takes to import torch
    and transformers, searches are a sixth.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def settled() -> Iterator[None]:
    """Search for garbage now, and leave all that is there out of every search within the context.

    A search that looks at each object of all modules and of a tokenizer holds the event loop up for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
