"""Run the event loop of a command that runs other people's code: nothing in it ends the loop, or keeps it from ending.

asyncio ends its loop when a task or a callback raises KeyboardInterrupt or SystemExit, or stops it, and at its end waits for every
task, asynchronous generator and thread, however long they take. Here only the main coroutine ends the loop, and what is left then
gets `END_TIMEOUT_S`. `asyncio.all_tasks()`, whose tasks anybody may cancel or wait for, has one alone, which heeds nothing:

    task of the loop ── waits for ──► main coroutine ──► all other tasks
    in all_tasks()                    └────── in `_Loop.tasks` alone ──┘

A signal is no exception here: `first_signal` says what the first does; the second ends the process. Time in which the process was
stopped does not pass here.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from asyncio.tasks import _register_task, _unregister_task  # documented, in "Extending" of asyncio's manual
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

import anyio

from agentrl.concurrency.running_time import RunningTime
from agentrl.concurrency.users_signals import bounded_signals
from agentrl.errors import EpisodeError

T = TypeVar("T")


END_TIMEOUT_S = 2.0
"""How long tasks may take to end after the main coroutine has, and threads and processes that are left after that."""
EXIT_FUNCTIONS_TIMEOUT_S = 10.0
"""How long functions registered with `atexit` may take."""
MAX_ERRORS_IN_A_ROW = 100
"""A loop that raises so often without calling anything is broken for good."""
_left_behind: set[asyncio.Task[Any]] = set()
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_waiting: list[Callable[[], object]] = []
"""What the first signal calls, of each `first_signal` that is open. The process has one handler for a signal: they share it."""
_handlers_before: dict[int, Any] = {}
"""The handlers that were there before the first of these contexts."""


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that goes on until what it was started for has ended, whatever its tasks and callbacks do."""

    def __init__(self) -> None:
        self._clock = RunningTime()
        super().__init__()
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._main: asyncio.Future[Any] | None = None
        """What it was started for."""
        self._awaited: asyncio.Future[Any] | None = None
        """What it runs for now: that, or what `asyncio.Runner` clears up after it."""

    def time(self) -> float:
        """Seconds in which this process ran: all timeouts are of this time."""
        return self._clock.now()

    def close(self) -> None:
        super().close()
        self._clock.stop()

    def run_until_complete(self, future: Any) -> Any:
        self._awaited = future = asyncio.ensure_future(future, loop=self)
        self._main = self._main or future
        return super().run_until_complete(future)

    def stop(self) -> None:
        self._check_ended("stop()")
        super().stop()

    def set_task_factory(self, factory: Any) -> None:
        """Refuse: the tasks of the run, and those of other episodes, would be made by it too."""
        self._check_ended("set_task_factory()")

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a task that `asyncio.all_tasks()` has not."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        _unregister_task(task)
        self.tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say what went wrong, where that can be said: a handler of the log, or of the loop's errors, may fail too."""
        with suppress(BaseException):
            super().call_exception_handler(context)

    def _check_ended(self, asked: str) -> None:
        if self._main is not None and not self._main.done():
            raise EpisodeError(
                f"{asked} is refused: the event loop is that of all episodes; run one of your own, in a thread or a process"
            )

    def run_forever(self) -> None:
        errors = 0

        def turns() -> None:
            nonlocal errors
            errors = 0

        while True:
            try:
                super().run_forever()
                return
            except BaseException as error:
                # KeyboardInterrupt or SystemExit of a task, which one that awaits it gets there; or what a signal handler or
                # another thread (PyThreadState_SetAsyncExc) raised while no task ran. Nobody else can know where it comes from.
                errors += 1
                text = f"{type(error).__name__} was raised in the event loop, which goes on"
                self.call_exception_handler({"message": text, "exception": error})
                if self._awaited is None or self._awaited.done():
                    return
                if errors > MAX_ERRORS_IN_A_ROW:
                    raise
                self._thread_id = None  # it may have been raised in the lines of asyncio that say that the loop is left
                asyncio._set_running_loop(None)
                self.call_soon(turns)

    async def shutdown_asyncgens(self) -> None:
        self._check_ended("shutdown_asyncgens()")
        await _wait({asyncio.ensure_future(super().shutdown_asyncgens())})

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: `run_loop` shuts the executor down, without waiting for its threads."""


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` to its end in an event loop of its own, and return or raise what it does.

    Tasks that then still run are cancelled; those that do not end, and threads, are left behind: see `end_process`. While the
    loop runs, SIGINT has its default action, which ends the process, unless `main` uses `first_signal`.
    """
    values: list[T] = []
    errors: list[BaseException] = []

    async def run() -> None:
        try:
            values.append(await main())
        except BaseException as error:
            errors.append(error)

    async def run_and_clear_up() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        own = asyncio.current_task()
        assert own is not None
        _register_task(own)  # anyio looks for the task that the loop was started with
        executor = ThreadPoolExecutor()
        loop.set_default_executor(executor)
        await _until_done(asyncio.create_task(run()))
        left = {task for task in {*loop.tasks, *asyncio.all_tasks()} if task is not own and not task.done()}
        for task in left:
            task.cancel()
        await _until_done(asyncio.create_task(_wait(left)))
        executor.shutdown(wait=False, cancel_futures=True)

    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if _in_main_thread() else None
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        with bounded_signals():
            anyio.run(run_and_clear_up, backend_options={"loop_factory": _Loop})
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        # Redirected by several tasks in turn, each to what it found there, they may be left as anything, and closed.
        sys.stdin, sys.stdout, sys.stderr = streams
    if errors:
        raise errors[0]
    return values[0]


async def _until_done(task: asyncio.Task[None]) -> None:
    """Wait for a task, whoever cancels the one that waits."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})


async def _wait(tasks: set[Any]) -> None:
    """Wait for tasks, and let the event loop forget those that do not end."""
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
        for task in left:
            leave_behind(task)


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Let asyncio forget a task that does not end: the end of the loop, which waits for every task, does not wait for it.

    It is kept in memory until it ends. Collected, it would be thrown out of where it waits, in the middle of anything.
    """
    _left_behind.add(task)
    task.add_done_callback(_left_behind.discard)
    _unregister_task(task)
    if isinstance(loop := task.get_loop(), _Loop):
        loop.tasks.discard(task)
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
