"""Signals of the tests' and of the candidate's, while our own machinery reads or writes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = signal.valid_signals()


@contextmanager
def handlers_later() -> Iterator[None]:
    """Have no handler of a signal run within the context: one that raises there, as an alarm of a test's does, would leave half a line."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
