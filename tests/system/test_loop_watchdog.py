"""The watchdog of the event loop, on a loop that is blocked."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from agentrl.system.loop_watchdog import watch_loop

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
