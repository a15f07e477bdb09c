"""Keep descriptors out of the processes that a workflow forks, as `multiprocessing` does where it forks.

A forked child holds a copy of every descriptor. As long as it lives, what waits for the run to let go of one waits for the child too:
the engine for the end of its input, the next run for the lock of the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_kept: dict[int, int] = {}
"""Descriptors that no forked child keeps, with how often each was asked for."""


@contextmanager
def kept_from_forks(descriptor: int) -> Iterator[None]:
    """Within the context, processes that this one forks do not hold `descriptor`, which must stay open."""
    _kept[descriptor] = _kept.get(descriptor, 0) + 1
    try:
        yield
    finally:
        _kept[descriptor] -= 1
        if not _kept[descriptor]:
            del _kept[descriptor]


def _let_go() -> None:
    if not _kept:
        return
    # Its number stays taken: objects in the child still know it, and would close whatever had it next.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _kept:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)
