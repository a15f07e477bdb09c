"""The watchdog of the event loop, on a loop that is blocked."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest

from agentrl.concurrency.loop_watchdog import INTERRUPT, LoopBlocked, watch_loop

pytestmark = [pytest.mark.anyio, pytest.mark.soak]


def blocks(seconds: float) -> None:
    time.sleep(seconds)


LINE = f"{__file__}:{blocks.__code__.co_firstlineno + 1} in blocks"


async def test_a_line_that_blocks_is_named_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(blocked_after_s=0.2) as watchdog:
        for _ in range(2):
            blocks(0.6)
            await anyio.sleep(0.3)
        assert watchdog.blocked == {LINE: 2}
        assert 0.4 < watchdog.take_max_lag_s() < 60
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if text.startswith(f"{LINE} blocks the event loop")]) == 1
    assert said[-1] == f"{LINE} blocked the event loop 2 times"


async def test_it_is_said_while_the_loop_is_blocked(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(blocked_after_s=0.2):
        blocks(0.8)
        assert f"{LINE} blocks the event loop" in caplog.text, "before the loop has turned again"


async def test_a_loop_that_is_busy_with_many_short_steps_blames_none_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """The loop is late by two seconds here; no line could be changed to mend that."""
    with watch_loop(blocked_after_s=1.0) as watchdog:
        loop = asyncio.get_running_loop()
        for _ in range(200):
            loop.call_soon(blocks, 0.01)
        await anyio.sleep(0)
        assert watchdog.blocked == {}
        await anyio.sleep(0.2)
        assert watchdog.take_max_lag_s() > 1.0
    assert caplog.text == ""


async def test_a_loop_that_waits_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(blocked_after_s=1.0) as watchdog:
        await anyio.sleep(1.5)
        assert watchdog.blocked == {}
        first, second = watchdog.take_max_lag_s(), watchdog.take_max_lag_s()
        assert first >= second == 0.0


def waits_for_itself(url: str) -> None:
    """A client that is not asynchronous, asks again what failed, and whose server is in the loop that it blocks."""
    for _ in range(100):
        with suppress(Exception), urllib.request.urlopen(url, timeout=60):
            return


async def test_a_line_that_would_block_for_ever_is_interrupted_and_only_its_task_fails() -> None:
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    blocking = (lambda: waits_for_itself(url), lambda: blocks(60), threading.Lock().acquire, socketpair_read)
    with watch_loop(blocked_after_s=0.2, interrupt_after_s=0.5):
        for block in blocking:
            started = time.perf_counter()

            async def episode(block: Callable[[], object] = block) -> None:
                if block is blocking[2]:
                    block = twice(block)
                block()

            task = asyncio.ensure_future(episode())
            other = asyncio.ensure_future(asyncio.sleep(0.1, "well"))
            with pytest.raises(LoopBlocked, match=f"{__file__}:.*blocked the event loop for 0.5 s"):
                await task
            assert await other == "well"
            assert time.perf_counter() - started < 40
    server.close()
    assert signal.getsignal(INTERRUPT) is signal.SIG_IGN


async def test_of_two_who_watch_one_loop_the_second_still_interrupts_when_the_first_has_ended() -> None:
    with watch_loop(blocked_after_s=0.2, interrupt_after_s=60), watch_loop(blocked_after_s=0.2, interrupt_after_s=0.4):
        with pytest.raises(LoopBlocked, match=r"blocked the event loop for 0\.4 s"):
            await asyncio.ensure_future(in_a_task(lambda: blocks(30)))
    first, second = watch_loop(0.2, 0.4), watch_loop(0.2, 0.5)
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        with pytest.raises(LoopBlocked, match=r"blocked the event loop for 0\.5 s"):
            await asyncio.ensure_future(in_a_task(lambda: blocks(30)))
    assert signal.getsignal(INTERRUPT) is signal.SIG_IGN


async def in_a_task(block: Callable[[], object]) -> None:
    block()


def twice(acquire: Callable[[], object]) -> Callable[[], object]:
    def both() -> None:
        acquire()
        acquire()

    return both


def socketpair_read() -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return ours.recv(1)


async def test_a_debugger_in_which_somebody_thinks_is_not_interrupted() -> None:
    prompt = {"__name__": "pdb", "time": time}
    exec("def wait_for_a_command(): time.sleep(1.5)", prompt)
    begun = time.monotonic()
    with watch_loop(blocked_after_s=0.2, interrupt_after_s=0.4):
        prompt["wait_for_a_command"]()
        await anyio.sleep(0)
    assert time.monotonic() - begun >= 1.5, "it was interrupted"
