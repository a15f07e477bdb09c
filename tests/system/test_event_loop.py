"""The event loop of a command: what ends it, what does not, and that its end is bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.system.event_loop import EXIT_FUNCTIONS_TIMEOUT_S, first_signal, run_loop


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What asyncio says of forgotten tasks is said here. In the middle of an import, Python 3.11 may fail (gh-106905)."""
    yield
    gc.collect()


def interrupt() -> None:
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


def test_a_task_that_raises_keyboard_interrupt_ends_it_beside_one_that_ignores_its_cancellation() -> None:
    ended: list[str] = []

    async def ignores() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def raises() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        tasks = [asyncio.create_task(ignores())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(raises()))
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.01)
            ended.append("main")

    with pytest.raises(KeyboardInterrupt):
        run_loop(main)
    assert ended == ["main"]


def test_its_end_does_not_wait_for_a_thread_that_does_not_end() -> None:
    release = threading.Event()

    async def main() -> str:
        asyncio.get_running_loop().run_in_executor(None, release.wait)
        return "done"

    try:
        assert run_loop(main) == "done"
    finally:
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
from agentrl.system.event_loop import end_process

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


def test_a_signal_ends_a_process_that_waits_for_its_end(tmp_path: Path) -> None:
    left = LEFT["exit function"] + "; threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()"
    program = tmp_path / "ending.py"
    program.write_text("import os, signal" + ENDING.replace("LEFT", left))
    assert subprocess.run([sys.executable, program], capture_output=True, timeout=40).returncode == -signal.SIGINT


@pytest.mark.soak
def test_exit_functions_run_beside_a_thread_that_does_not_end(tmp_path: Path) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING.replace("LEFT", LEFT["thread"] + "; atexit.register(print, ' and sent')"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (7, "flushed and sent\n")
