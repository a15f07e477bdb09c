"""Who waits for whom: sessions take turns, and none holds up the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anyio
import pytest

from agentrl.proxy.fair_work import BUDGET_S, INLINE_BYTES, FairWork
from tests.components import wait_until

pytestmark = pytest.mark.anyio
LARGE = INLINE_BYTES + 1


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def started(work: FairWork, owners: list[str], size: int, task: Callable[[str], None]) -> None:
    """Ask for one piece of work for each of `owners`, in this order, and wait for all of them."""

    async def one(owner: str) -> None:
        await work.run(owner, size, lambda: task(owner))

    async with anyio.create_task_group() as group:
        for owner in owners:
            group.start_soon(one, owner)


@pytest.mark.soak
async def test_small_pieces_leave_the_loop_time_for_others_and_sessions_take_turns() -> None:
    order: list[str] = []
    turns = 0
    work = FairWork(threads=1)

    def task(owner: str) -> None:
        order.append(owner)
        spin(BUDGET_S / 4)

    async def count_turns() -> None:
        nonlocal turns
        while len(order) < 101:
            turns += 1
            await anyio.sleep(0)

    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        await started(work, ["busy"] * 100 + ["other"], INLINE_BYTES, task)
    assert order.count("busy") == 100
    assert order.index("other") < 10, "the session with one request waits for the hundred of another"
    assert turns > 50, "the loop looks at nothing else while a hundred requests are read"


@pytest.mark.soak
async def test_large_pieces_run_in_threads_one_at_a_time_for_each_session() -> None:
    running: dict[str, int] = {"busy": 0, "other": 0}
    most: dict[str, int] = dict(running)
    order: list[str] = []
    threads: set[int] = set()
    lock = threading.Lock()

    def task(owner: str) -> None:
        threads.add(threading.get_ident())
        with lock:
            order.append(owner)
            running[owner] += 1
            most[owner] = max(most[owner], running[owner])
        time.sleep(0.01)
        with lock:
            running[owner] -= 1

    await started(FairWork(threads=2), ["busy"] * 8 + ["other"] * 2, LARGE, task)
    assert most == {"busy": 1, "other": 1}
    assert set(order[:4]) == {"busy", "other"}, "the session that came later waits for all of another's"
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("size", [INLINE_BYTES, LARGE])
async def test_who_leaves_while_it_waits_takes_nobodys_turn(size: int) -> None:
    work = FairWork(threads=1)
    done: list[str] = []

    def task(owner: str) -> None:
        spin(BUDGET_S)
        done.append(owner)

    leaving = anyio.CancelScope()

    async def leave() -> None:
        with leaving:
            await work.run("leaves", size, lambda: task("leaves"))

    async with anyio.create_task_group() as group:
        group.start_soon(started, work, ["first"] * 3, size, task)
        group.start_soon(leave)
        group.start_soon(started, work, ["last"] * 3, size, task)
        await anyio.sleep(0)
        await anyio.sleep(0)
        leaving.cancel()
    await wait_until(lambda: done.count("first") == 3 and done.count("last") == 3, 40)
    await work.run("later", size, lambda: task("later"))
    assert done[-1] == "later"


@pytest.mark.parametrize("size", [INLINE_BYTES, LARGE])
async def test_work_that_raises_frees_its_turn(size: int) -> None:
    work = FairWork(threads=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await work.run("a", size, lambda: 1 // 0)
    assert await work.run("b", size, lambda: 1) == 1
