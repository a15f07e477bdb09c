"""A signal handler of the user's code raises in the code it belongs to, or nowhere.

Python runs a handler between any two steps of the main thread. There an exception, such as that of a time limit set with SIGALRM,
may meet the code of another episode, of the run, or of the event loop itself.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

_set_handler = signal.signal
_call: ContextVar[object] = ContextVar("_call", default=None)
"""Which call of the user's code this is, of those that may fail alone."""
_TIMERS = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}


def begin_users_call() -> None:
    """Note that what the current task does from now on is a call of the user's code: what is raised there is its own failure."""
    _call.set(object())


class _Bounded:
    """A handler whose exceptions reach the call that it was set in, or any call where it was set in none."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler = handler
        self._owner = _call.get()

    def __call__(self, number: int, frame: Any) -> None:
        here = _call.get()
        try:
            self._handler(number, frame)
        except BaseException as error:
            if here is not None and self._owner in (None, here):
                raise
            text = f"the handler of signal {number} raised outside of the code that set it: the exception is dropped"
            with suppress(BaseException):
                loop = asyncio.get_running_loop()
                loop.call_soon_threadsafe(loop.call_exception_handler, {"message": text, "exception": error})


def _set_bounded(number: int, handler: Any) -> Any:
    return _set_handler(
        number, _Bounded(handler) if callable(handler) and not isinstance(handler, _Bounded) else handler
    )


@contextmanager
def bounded_signals() -> Iterator[None]:
    """Within the context, handlers that are set are bounded. At its end handlers are what they were, and timers of others are off.

    Outside of the main thread, which alone may set handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    signal.signal = _set_bounded  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = _set_handler
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                if number in _TIMERS:
                    signal.setitimer(_TIMERS[signal.Signals(number)], 0)
                _set_handler(number, handler)
