"""The event loop of a command: what ends it, what does not, and that its end is bounded."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentrl.concurrency.event_loop import END_TIMEOUT_S, EXIT_FUNCTIONS_TIMEOUT_S, first_signal, run_loop
from agentrl.errors import EpisodeError
from agentrl.reporting.logger import logger


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What asyncio says of forgotten tasks is said here. In the middle of an import, Python 3.11 may fail (gh-106905)."""
    yield
    gc.collect()


def interrupt() -> None:
    raise KeyboardInterrupt


async def interrupts() -> None:
    raise KeyboardInterrupt


def test_it_returns_what_the_main_coroutine_returns() -> None:
    async def main() -> int:
        await anyio.sleep(0)
        return 3

    assert run_loop(main) == 3


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt("x"), SystemExit(3), asyncio.CancelledError()])
def test_it_raises_what_the_main_coroutine_raises(error: BaseException) -> None:
    async def main() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run_loop(main)
    assert raised.value is error


def test_tasks_and_callbacks_that_interrupt_or_exit_do_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.call_soon(interrupt)
        loop.call_soon(sys.exit, 3)
        loop.call_later(0.01, interrupt)
        tasks = [asyncio.create_task(interrupts()) for _ in range(3)]
        await asyncio.sleep(0.03)
        with pytest.raises(KeyboardInterrupt):
            await tasks[0]
        return await asyncio.to_thread(lambda: "goes on")

    assert run_loop(main) == "goes on"
    assert "KeyboardInterrupt was raised in the event loop, which goes on" in caplog.text
    assert "SystemExit was raised in the event loop, which goes on" in caplog.text


def test_a_log_handler_that_fails_does_not_end_it_either() -> None:
    class Fails(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            handled.append(record.getMessage())
            raise ValueError("no log")

    async def main() -> str:
        asyncio.get_running_loop().call_soon(interrupt)
        asyncio.get_running_loop().call_soon(json.loads, "no JSON")
        logger("agentrl.somewhere").warning("said by %s", "the run")
        await asyncio.sleep(0.03)
        return "goes on"

    handled: list[str] = []
    handler = Fails()
    logging.getLogger().addHandler(handler)
    try:
        assert run_loop(main) == "goes on"
    finally:
        logging.getLogger().removeHandler(handler)
    assert len(handled) >= 3
    assert "said by the run" in handled


def test_a_line_of_the_log_names_the_place_that_says_it(caplog: pytest.LogCaptureFixture) -> None:
    logger("agentrl.somewhere").warning("x")
    assert [(record.name, record.filename) for record in caplog.records] == [
        ("agentrl.somewhere", "test_event_loop.py")
    ]


def stops() -> None:
    asyncio.get_running_loop().stop()


def makes_no_tasks() -> None:
    def refuse(loop: object, coro: object, **_: object) -> None:
        raise ValueError("no tasks")

    asyncio.get_running_loop().set_task_factory(refuse)  # type: ignore[arg-type]


@pytest.mark.parametrize("act", [stops, makes_no_tasks])
def test_what_would_end_it_for_all_is_refused(act: Callable[[], None]) -> None:
    async def main() -> str:
        asyncio.get_running_loop().call_soon(act)
        await asyncio.sleep(0.01)
        with pytest.raises(EpisodeError, match="is refused: the event loop is that of all episodes"):
            act()
        return await asyncio.create_task(asyncio.sleep(0.01, "goes on"))

    assert run_loop(main) == "goes on"


def test_generators_are_not_closed_by_a_task_that_closes_all() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> int:
        generator = numbers()
        await anext(generator)
        with pytest.raises(EpisodeError, match="shutdown_asyncgens"):
            await asyncio.get_running_loop().shutdown_asyncgens()
        return await anext(generator)

    assert run_loop(main) == 2


def test_a_task_that_cancels_all_tasks_finds_none_that_heeds_it() -> None:
    async def hostile() -> None:
        for _ in range(10):
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wait(asyncio.all_tasks()), 0.05)

    async def main() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(hostile)
            group.start_soon(anyio.sleep, 0.1)
        return await anyio.to_thread.run_sync(lambda: "goes on")

    assert run_loop(main) == "goes on"


def test_tasks_that_are_left_are_cancelled_at_its_end() -> None:
    cancelled: list[str] = []

    async def waits(name: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def main() -> object:
        kept = [asyncio.create_task(waits("by the loop")), asyncio.Task(waits("by hand"))]
        await asyncio.sleep(0.01)
        return kept

    run_loop(main)
    assert sorted(cancelled) == ["by hand", "by the loop"]


def test_an_interrupt_in_the_moment_of_its_end_does_not_keep_it_from_ending() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(5):
            task.add_done_callback(lambda _: interrupt())

    run_loop(main)


@pytest.mark.soak
def test_its_end_does_not_wait_for_tasks_generators_and_threads_that_do_not_end() -> None:
    release = threading.Event()

    async def swallows() -> None:
        while True:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await swallows()

    async def main() -> list[object]:
        generator = numbers()
        await anext(generator)
        kept = [
            asyncio.create_task(swallows()),
            generator,
            asyncio.get_running_loop().run_in_executor(None, release.wait),
        ]
        await asyncio.sleep(0.01)
        return kept

    started = time.perf_counter()
    kept = run_loop(main)
    assert time.perf_counter() - started < 2 * END_TIMEOUT_S + 2
    assert len(kept) == 3
    release.set()


def test_generators_that_are_left_open_are_closed_in_order() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.05)
            closed.append("closed")

    async def main() -> AsyncIterator[int]:
        generator = numbers()
        await anext(generator)
        return generator

    run_loop(main)
    assert closed == ["closed"]


@pytest.mark.parametrize(
    ("number", "then"), [(signal.SIGINT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)], ids=["SIGINT", "SIGHUP"]
)
def test_the_first_signal_acts_in_the_loop_and_the_handlers_are_restored(number: int, then: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL), signal.getsignal(signal.SIGINT)
    seen: list[Any] = []

    async def main() -> None:
        acted = anyio.Event()
        with first_signal(acted.set):
            signal.raise_signal(number)
            seen.append(signal.getsignal(number))
            with anyio.fail_after(60):
                await acted.wait()

    try:
        run_loop(main)
        assert seen == [then], (
            "the second has its default action, but that of a closed terminal, which may send several"
        )
        assert signal.getsignal(signal.SIGINT) is before[1]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup

        async def under_nohup() -> Any:
            with first_signal(interrupt):
                return signal.getsignal(signal.SIGHUP)

        assert run_loop(under_nohup) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[0])


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_the_first_signal_is_that_of_all_who_wait_and_none_of_them_leaves_a_handler_behind(first_to_end: int) -> None:
    """Two runs in one event loop: the one ends, a signal comes, the other ends."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    acted: list[int] = []

    async def main() -> None:
        begun, ended = anyio.Event(), [anyio.Event(), anyio.Event(), anyio.Event()]

        async def wait(number: int) -> None:
            with first_signal(partial(acted.append, number)):
                if number == 2:
                    begun.set()
                await ended[number].wait()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(wait, number)
                await begun.wait()
                ended[first_to_end].set()
                await anyio.sleep(0.01)
                signal.raise_signal(signal.SIGTERM)
                await anyio.sleep(0.01)
                for event in ended:
                    event.set()

    asyncio.run(main())
    assert acted == [1 - first_to_end, 2]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_a_thread_no_signal_is_waited_for_and_no_handler_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def wait() -> Any:
        with first_signal(interrupt):
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, wait()).result(60) is before
    assert signal.getsignal(signal.SIGINT) is before


ENDING = """
import atexit, logging, multiprocessing, sys, threading, time
from agentrl.errors import EpisodeError
from agentrl.concurrency.event_loop import end_process

class Hanging(logging.Handler):
    def flush(self): time.sleep(60)

if __name__ == "__main__":
    LEFT
    print("flushed", end="", flush=True)
    end_process(7)
"""
LEFT = {
    "thread": "threading.Thread(target=time.sleep, args=(60,)).start()",
    "process": "multiprocessing.get_context('spawn').Process(target=time.sleep, args=(60,)).start()",
    "forked process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
    "pool of processes": "pool = multiprocessing.Pool(1); pool.apply_async(time.sleep, (60,))",
    "exit function": "atexit.register(time.sleep, 60)",
    "log that is never written": "logging.getLogger().addHandler(Hanging())",
}


@pytest.mark.soak
@pytest.mark.parametrize("left", sorted(LEFT))
def test_the_process_ends_though_what_user_code_left_does_not(left: str, tmp_path: Path) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING.replace("LEFT", LEFT[left]))
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=50)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, output) == (7, "flushed")
    assert time.perf_counter() - started < EXIT_FUNCTIONS_TIMEOUT_S + 10


def test_the_process_ends_without_taking_every_object_down(tmp_path: Path) -> None:
    """Of a run's imports and records that takes seconds. Exit functions run, and what is printed arrives."""
    kept = "class Kept:\n        def __del__(self, write=os.write): write(1, b'taken down')\n    sys.kept = Kept()"
    program = tmp_path / "ending.py"
    program.write_text("import os" + ENDING.replace("LEFT", kept + "; atexit.register(print, ' and sent')"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "flushed and sent\n")


@pytest.mark.soak
def test_exit_functions_run_beside_a_thread_that_does_not_end(tmp_path: Path) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING.replace("LEFT", LEFT["thread"] + "; atexit.register(print, ' and sent')"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (7, "flushed and sent\n")


def raises(*_: object) -> None:
    raise TimeoutError("too slow")


@pytest.fixture
def alarms() -> Iterator[None]:
    """SIGALRM raises, wherever it comes; set before the loop is."""
    before = signal.signal(signal.SIGALRM, raises)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.soak
def test_an_exception_between_its_steps_does_not_end_it(alarms: None, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        await asyncio.sleep(0.2)
        thread = ctypes.c_ulong(threading.get_ident())
        set_exception = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, ctypes.py_object(ValueError))
        threading.Timer(0.05, set_exception).start()
        await asyncio.sleep(0.2)
        return "goes on"

    assert run_loop(main) == "goes on"
    assert "TimeoutError was raised in the event loop, which goes on" in caplog.text
    assert "ValueError was raised in the event loop, which goes on" in caplog.text


@pytest.mark.soak
def test_exceptions_do_not_end_what_is_cleared_up_at_its_end(alarms: None) -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            await asyncio.sleep(0.2)
            closed.append("closed")

    async def main() -> AsyncIterator[int]:
        generator = numbers()
        await anext(generator)
        return generator

    run_loop(main)
    assert closed == ["closed"]


def test_a_handler_of_errors_that_exits_does_not_end_it() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: sys.exit(3))
        loop.call_soon(json.loads, "no JSON")
        loop.call_soon(interrupt)
        return await asyncio.sleep(0.05, "goes on")

    assert run_loop(main) == "goes on"


BROKEN = """
import asyncio
from agentrl.errors import EpisodeError
from agentrl.concurrency.event_loop import run_loop

async def main():
    asyncio.get_running_loop()._selector.close()
    await asyncio.sleep(60)

run_loop(main)
"""


@pytest.mark.soak
def test_a_loop_that_cannot_turn_any_more_ends() -> None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=40)
    assert done.returncode == 1
    assert time.perf_counter() - started < 20
