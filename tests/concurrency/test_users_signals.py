"""Signal handlers of the user's code that raise."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl import Episode
from agentrl.concurrency.event_loop import run_loop
from agentrl.proxy import ChatFormat
from agentrl.rollout.contain import Abandoned, Ended, contained
from tests.rollout.hostile_run import first_of_its_group, play


def too_slow(*_: object) -> None:
    raise TimeoutError("too slow")


def limit(seconds: float, interval: float = 0) -> None:
    signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds, interval)


def spin() -> None:
    for _ in range(10**9):
        pass


async def ended(call: Callable[[], Awaitable[Any]]) -> Ended[Any]:
    return await contained(call, timeout_s=20, cancel_timeout_s=1, abandoned=Abandoned())


def test_a_time_limit_ends_the_code_that_set_it() -> None:
    async def call() -> None:
        limit(0.1)
        spin()

    async def main() -> None:
        assert isinstance((await ended(call)).error, TimeoutError)

    run_loop(main)


@pytest.mark.soak
@pytest.mark.parametrize("spins", [False, True])
def test_a_time_limit_ends_nothing_else(spins: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def sets() -> str:
        limit(0.1)
        await anyio.sleep(0.5)
        return "ended"

    async def other() -> str:
        await anyio.sleep(0.05)
        for _ in range(1 + 5 * 10**6 * spins):
            pass
        return "ended"

    values: list[str | None] = []

    async def main() -> None:
        async def run(call: Callable[[], Awaitable[str]]) -> None:
            values.append((await ended(call)).value)

        async with anyio.create_task_group() as group:
            group.start_soon(run, sets)
            group.start_soon(run, other)

    run_loop(main)
    assert values == ["ended", "ended"]
    assert "the handler of signal 14 raised outside of the code that set it: the exception is dropped" in caplog.text


@pytest.mark.soak
def test_after_the_loop_handlers_are_what_they_were_and_timers_are_off() -> None:
    before = signal.getsignal(signal.SIGALRM)

    async def main() -> str:
        limit(0.02, 0.02)
        return "ended"

    assert run_loop(main) == "ended"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.signal(signal.SIGALRM, before) is before


def test_a_handler_that_is_set_again_as_it_was_found_is_bounded_once() -> None:
    async def main() -> None:
        signal.signal(signal.SIGALRM, too_slow)
        found = signal.getsignal(signal.SIGALRM)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, found)
        assert signal.getsignal(signal.SIGALRM) is found

    run_loop(main)


@pytest.mark.soak
def test_workflows_with_time_limits_that_raise_harm_no_other_and_no_run(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async def hostile(episode: Episode) -> Any:
        limit(0.02)
        await anyio.sleep(0.2)
        return 0.25

    result = play(first_of_its_group(hostile), nano_format, tmp_path, groups=4)
    assert (result.batches, result.open_groups, result.open_sessions) == (2, 0, 0)
    assert len(result.finished) >= 8, "every sibling finished"
