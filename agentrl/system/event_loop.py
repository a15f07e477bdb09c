"""The event loop of a command: its first signal, its bounded end, and tasks that do not end."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import sys
import threading
from asyncio.tasks import _unregister_task  # documented, in "Extending" of asyncio's manual
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

END_TIMEOUT_S = 2.0
"""How long tasks may take to end that are left when the main coroutine has."""
EXIT_FUNCTIONS_TIMEOUT_S = 10.0
"""How long functions registered with `atexit` may take."""
_left_behind: set[asyncio.Task[Any]] = set()


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` to its end in an event loop of its own, and return or raise what it does.

    While the loop runs, SIGINT has its default action, which ends the process, unless `main` uses `first_signal`.
    """

    async def run() -> T:
        try:
            return await main()
        finally:
            # The end of the loop would wait without end for a task that ignores its cancellation.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            for task in (await asyncio.wait(left, timeout=END_TIMEOUT_S))[1] if left else ():
                leave_behind(task)

    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if _in_main_thread() else None
    streams, loop = (sys.stdout, sys.stderr), asyncio.new_event_loop()
    task = loop.create_task(run())
    try:
        return loop.run_until_complete(task)
    finally:
        while not task.done():  # a KeyboardInterrupt of another task is raised out of the loop at once
            task.cancel()
            with suppress(BaseException):
                loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()  # which waits for no thread
        sys.stdout, sys.stderr = streams  # tasks that redirect them in turn may leave them closed
        if before is not None:
            signal.signal(signal.SIGINT, before)


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
    may send more than one SIGHUP, which counts once, and none under `nohup`. Where two contexts are open, the inner one gets the
    first signal. Outside of the main thread, which alone gets signals, this does nothing.

    Args:
        act: Called once at most, with nothing.
    """
    if not _in_main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def receive(number: int, _: object) -> None:
        restore()
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        loop.call_soon_threadsafe(act)

    nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - nohup:
        before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        restore()


def end_process(code: int) -> NoReturn:
    """End the process, also when what the user's code left behind never ends, and without taking every object down, which takes seconds.

    Python would wait for threads and for processes of `multiprocessing` first. Functions registered with `atexit`, which may have
    something to send, get `EXIT_FUNCTIONS_TIMEOUT_S`. By now all that a command writes is written.
    """
    if _in_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception of it here would leave the process to its threads
    late = threading.Timer(EXIT_FUNCTIONS_TIMEOUT_S, os._exit, (code,))
    late.daemon = True
    late.start()
    for child in multiprocessing.active_children():
        child.terminate()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, by either side
            stream.flush()
    os._exit(code)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
