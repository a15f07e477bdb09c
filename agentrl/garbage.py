"""Python's search for reference cycles, in a process that has loaded what it needs."""

from __future__ import annotations

import gc


def settle() -> None:
    """Search now, and leave all that is there out of every later search: one that looks at each object of all modules and of a
    tokenizer holds the event loop up for a fifth of a second."""
    gc.collect()
    gc.freeze()
