"""A condition wakes all who wait, each time that a change is announced; something opens beside the block that needs it; what the block of background
tasks raises comes out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from agentrl.system.tasks import Condition, background_tasks, opening

pytestmark = pytest.mark.anyio


async def test_a_change_wakes_every_task_that_waits() -> None:
    condition, woken = Condition(), list[int]()

    async def wait(number: int) -> None:
        await condition.wait()
        woken.append(number)

    with anyio.fail_after(40):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
            condition.notify_all()
    assert sorted(woken) == [0, 1, 2]


async def test_a_change_that_came_before_wakes_nobody() -> None:
    condition = Condition()
    condition.notify_all()
    with anyio.move_on_after(0.05) as bound:
        await condition.wait()
    assert bound.cancelled_caught


async def test_who_waits_for_something_looks_again_after_every_change() -> None:
    condition, count, looked = Condition(), 0, list[int]()

    def enough() -> bool:
        looked.append(count)
        return count == 2

    with anyio.fail_after(40):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(condition.wait_for, enough)
            for _ in range(2):
                await anyio.wait_all_tasks_blocked()
                count += 1
                condition.notify_all()
    assert looked == [0, 1, 2]


async def test_what_is_true_already_is_not_waited_for() -> None:
    with anyio.fail_after(40):
        await Condition().wait_for(lambda: True)


async def test_an_error_of_the_predicate_reaches_who_waits() -> None:
    def broken() -> bool:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Condition().wait_for(broken)


async def test_what_opens_beside_a_block_is_waited_for_where_it_is_needed_and_closed_after_it() -> None:
    seen, may_open = list[str](), anyio.Event()

    @asynccontextmanager
    async def door() -> AsyncIterator[str]:
        await may_open.wait()
        try:
            yield "open"
        finally:
            seen.append("closed")

    with anyio.fail_after(40):
        async with opening(door) as opened:
            may_open.set()  # the block has begun before it is open
            seen.append(await opened())
    assert seen == ["open", "closed"]


async def test_what_is_open_stays_so_while_a_cancelled_block_finishes_what_it_has_begun() -> None:
    seen = list[str]()

    @asynccontextmanager
    async def door() -> AsyncIterator[None]:
        try:
            yield
        finally:
            seen.append("closed")

    with anyio.fail_after(40), anyio.CancelScope() as scope:
        async with opening(door) as opened:
            await opened()
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                seen.append("finished")
    assert seen == ["finished", "closed"]


async def test_what_cannot_be_opened_raises_its_own_error_where_it_is_needed() -> None:
    @asynccontextmanager
    async def door() -> AsyncIterator[str]:
        raise OSError("it is locked")
        yield

    async def enter() -> None:
        async with opening(door) as opened:
            await anyio.wait_all_tasks_blocked()
            await opened()

    with anyio.fail_after(40), pytest.raises(OSError, match="it is locked"):
        await enter()


async def test_what_breaks_while_it_is_open_ends_the_block() -> None:
    @asynccontextmanager
    async def door() -> AsyncIterator[str]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(breaks)
            yield "open"

    async def breaks() -> None:
        raise OSError("it fell out")

    with (
        anyio.fail_after(40),
        pytest.RaisesGroup(pytest.RaisesExc(OSError, match="it fell out"), flatten_subgroups=True),
    ):
        async with opening(door) as opened:
            await opened()
            await anyio.sleep_forever()


async def test_what_a_block_raises_while_it_is_cancelled_comes_out() -> None:
    async def block() -> None:
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("not kept")

    with pytest.raises(ValueError, match="not kept"), anyio.move_on_after(0):
        await block()
