"""The event loop of a command: its signals, its end, and tasks that do not end."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from asyncio.tasks import _unregister_task  # documented, in "Extending" of asyncio's manual
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio

T = TypeVar("T")


END_TIMEOUT_S = 2.0
"""How long tasks may take to end that are left when the main coroutine has, and threads and processes after that."""
EXIT_FUNCTIONS_TIMEOUT_S = 10.0
"""How long functions registered with `atexit` may take."""
_left_behind: set[asyncio.Task[Any]] = set()
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_waiting: list[Callable[[], object]] = []
"""What the first signal calls, of each `first_signal` that is open. The process has one handler for a signal: they share it."""
_handlers_before: dict[int, Any] = {}
"""The handlers that were there before the first of these contexts."""


class _Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. The end of the loop does not wait for one that does not end."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` to its end in an event loop of its own, and return or raise what it does.

    While the loop runs, SIGINT has its default action, which ends the process, unless `main` uses `first_signal`.
    """

    async def run() -> T:
        asyncio.get_running_loop().set_default_executor(_Threads())
        try:
            return await main()
        finally:
            await _end_tasks()

    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if _in_main_thread() else None
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        return anyio.run(run)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        # Redirected by several tasks in turn, each to what it found there, they may be left as anything, and closed.
        sys.stdin, sys.stdout, sys.stderr = streams


async def _end_tasks() -> None:
    """Cancel the tasks that are left. The end of the loop would wait without end for one that ignores it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, ignoring = await asyncio.wait(left, timeout=END_TIMEOUT_S)
        for task in ignoring:
            leave_behind(task)


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Let asyncio forget a task that does not end: the end of the loop, which waits for every task, does not wait for it.

    It is kept in memory until it ends. Collected, it would be thrown out of where it waits, in the middle of anything.
    """
    _left_behind.add(task)
    task.add_done_callback(_left_behind.discard)
    _unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio itself does where it waits no more


@contextmanager
def first_signal(act: Callable[[], None]) -> Iterator[None]:
    """Within the context, call `act` in the event loop on the first SIGINT, SIGTERM or SIGHUP, which a closed terminal sends.

    The next one does what it would have done without this, at once and also while the event loop is blocked; but a terminal that closes
    may send more than one SIGHUP, which counts once, and none under `nohup`. Where several
    contexts are open at the same time, in whatever order they end, the first signal is that of all of them. Outside of the main
    thread, which alone gets signals, this does nothing.

    Args:
        act: Called once at most, with nothing.
    """
    if not _in_main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    waiting = partial(loop.call_soon_threadsafe, act)
    if not _waiting:
        nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        _handlers_before.update((number, signal.signal(number, _receive)) for number in {*_SIGNALS} - nohup)
    _waiting.append(waiting)
    try:
        yield
    finally:
        if waiting in _waiting:
            _waiting.remove(waiting)
            if not _waiting:
                _restore_handlers()


def _receive(number: int, _: object) -> None:
    """Take the first signal: every context that waits for one gets it, and none waits for the next."""
    acts = [*_waiting]
    _waiting.clear()
    _restore_handlers()
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    for act in acts:
        with suppress(RuntimeError):  # its loop was closed under it
            act()


def _restore_handlers() -> None:
    for number, handler in _handlers_before.items():
        signal.signal(number, handler)
    _handlers_before.clear()


def end_process(code: int) -> NoReturn:
    """End the process, also when what the user's code left behind never ends, and without taking every object down, which takes seconds.

    Python waits at its end for threads and for processes of `multiprocessing`, then calls what was registered with `atexit`. The
    first two get `END_TIMEOUT_S` here, and the last, which may have something to send, `EXIT_FUNCTIONS_TIMEOUT_S`. By now all that
    a command writes is written, so that nothing of it is lost with what does not end in time.
    """
    if _in_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception of it here would leave the process to its threads
    deadline = time.monotonic() + END_TIMEOUT_S
    while (_threads_left() or multiprocessing.active_children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    with suppress(RuntimeError):  # no room for a thread
        threading.Thread(target=_end_in_time, args=(code,), daemon=True).start()
    for child in multiprocessing.active_children():
        child.terminate()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, by either side
            stream.flush()
    os._exit(code)


def _end_in_time(code: int) -> None:
    time.sleep(EXIT_FUNCTIONS_TIMEOUT_S)
    os._exit(code)


def _threads_left() -> bool:
    return any(thread is not threading.current_thread() and not thread.daemon for thread in threading.enumerate())


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
