"""The warm pool: bounded, first come first served, and never short of a sandbox that somebody forgot."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import openai
import pytest

from agentrl.config import RunConfig
from agentrl.episode import Episode, EpisodeState
from agentrl.errors import ConfigError, SandboxError
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.sandboxes import Backend, BackendName, Limits, Sandbox, SandboxSpec, grade, open_pool, open_sandboxes
from agentrl.sandboxes import pool as pool_module
from agentrl.sandboxes.grading.tests import AssertTest, IOTest
from agentrl.testing import ScriptedModel
from tests.components import wait_until
from tests.real_sandboxes import kill_first_process

pytestmark = pytest.mark.anyio


async def test_a_pool_never_has_more_sandboxes_than_its_size(backend: BackendName) -> None:
    busy = most = 0

    async def use(index: int) -> None:
        nonlocal busy, most
        async with pool.take() as (sandbox,):
            busy += 1
            most = max(most, busy)
            done = await sandbox.run_python(code=f"import os; print({index}, os.listdir())")
            assert done.stdout == f"{index} []\n".encode()
            await sandbox.write("left.txt", "behind")
            busy -= 1

    async with open_pool(backend=backend, size=3) as pool:
        async with anyio.create_task_group() as tasks:
            for index in range(30):
                tasks.start_soon(use, index)
        metrics = pool.metrics
    assert most <= 3
    assert metrics.taken == 30
    assert metrics.started <= 3
    assert metrics.lost == 0
    assert metrics.wait_s >= metrics.wait_max_s > 0
    assert metrics.runs >= 27  # those of sandboxes that are back
    assert metrics.run_s > 0
    assert metrics.reset_s > 0


async def test_sandboxes_are_leased_in_the_order_of_asking(bubblewrap: BackendName) -> None:
    """Those who want two are not overtaken for ever by those who want one."""
    order: list[str] = []

    async def use(name: str, count: int) -> None:
        async with pool.take(count):
            order.append(name)
            await anyio.sleep(0.02)

    async with open_pool(backend=bubblewrap, size=2) as pool:
        async with anyio.create_task_group() as tasks:
            for index in range(8):
                tasks.start_soon(use, f"{index}", 1 + index % 2)
                await anyio.sleep(0)
    assert order == [str(index) for index in range(8)]


async def test_a_user_who_is_cancelled_leaves_a_clean_sandbox(backend: BackendName) -> None:
    async with open_pool(backend=backend, size=1) as pool:
        for _ in range(3):
            with anyio.move_on_after(0.1):
                async with pool.take() as (sandbox,):
                    await sandbox.run(["sh", "-c", "echo x > x; sleep 1000"], timeout_s=600)
        with anyio.fail_after(60):
            async with pool.take() as (sandbox,):
                done = await sandbox.run(["sh", "-c", "ls; set -- /proc/[0-9]*; echo $#"])
    assert done.stdout == b"2\n", "the first process of the sandbox, and the shell"
    assert pool.metrics.lost == 0


async def test_a_pool_grows_only_when_somebody_waits(bubblewrap: BackendName) -> None:
    cores = max(2, len(os.sched_getaffinity(0)))
    async with open_pool(backend=bubblewrap, size=cores + 4) as pool:
        for _ in range(10):
            async with pool.take(cores):
                pass
        assert pool.metrics.started == cores
        async with pool.take(cores), pool.take(2):
            pass
        assert pool.metrics.started == cores + 2


async def test_one_who_stops_waiting_takes_no_sandbox_with_him(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool:
        async with pool.take():
            with anyio.move_on_after(0.05):
                async with pool.take():
                    raise AssertionError("there was no second sandbox")
        with anyio.fail_after(60):
            async with pool.take():
                pass


async def test_waiting_is_bounded(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1, wait_timeout_s=2) as pool, pool.take():
        with pytest.raises(SandboxError, match=r"no sandbox was free within 2 s: 0 wait for 1 sandboxes"):
            async with pool.take():
                pass
        with pytest.raises(ConfigError, match="2 sandboxes at once from a pool of 1"):
            async with pool.take(2):
                pass


async def test_a_closed_pool_leases_nothing(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool:
        pass
    with anyio.fail_after(40), pytest.raises(SandboxError, match="this pool of sandboxes is closed"):
        await pool.acquire()


async def test_a_lost_sandbox_is_replaced(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool:
        async with pool.take() as (sandbox,):
            kill_first_process(sandbox)
        async with pool.take() as (sandbox,):
            assert (await sandbox.run(["true"])).ok
            idle = sandbox
        await wait_until(lambda: pool.metrics.resets == 1, 40)
        kill_first_process(idle)
        await wait_until(lambda: idle.lost is not None, 40)
        async with pool.take() as (sandbox,):
            assert (await sandbox.run(["true"])).ok
    assert pool.metrics.lost == 2


@pytest.mark.soak
async def test_a_hundred_verdicts_at_once(backend: BackendName) -> None:
    """Each uses up a quarter of its time limit: waiting for a sandbox, or for a core, must not count."""
    source = """
import time
start = time.process_time()
while time.process_time() - start < 0.05: pass
print(input())
"""
    limits = Limits(timeout_s=0.2)
    async with open_pool(backend=backend) as pool, anyio.create_task_group() as tasks:

        async def one(index: int) -> None:
            verdict = await grade(source, [IOTest(stdin=f"{index}", stdout=f"{index}")], pool=pool, limits=limits)
            assert verdict.passed, verdict

        for index in range(100):
            tasks.start_soon(one, index)


async def test_a_run_s_pools_open_when_they_are_asked_for(bubblewrap: BackendName) -> None:
    async with open_sandboxes(backend=bubblewrap, graders=2, leases=1) as sandboxes:
        assert sandboxes.metrics().started == 0
        spec = SandboxSpec()
        grading_pool, leasing = await sandboxes.pool(spec, "grade"), await sandboxes.pool(spec, "lease")
        assert grading_pool is not leasing
        assert await sandboxes.pool(SandboxSpec(), "grade") is grading_pool
        async with leasing.take():  # and all the same a verdict, which takes two
            test = AssertTest(code="assert f() == 1")
            assert (await grade("def f(): return 1", [test], pool=grading_pool)).passed
        assert sandboxes.metrics().taken == 3


async def test_sandboxes_of_kinds_that_nobody_asks_for_any_more_go(bubblewrap: BackendName) -> None:
    """Tasks may have an image each: sandboxes that stand idle are bounded over all of them."""
    kinds = [SandboxSpec(limits=Limits(memory_mb=100 + n)) for n in range(12)]
    async with open_sandboxes(backend=bubblewrap, graders=2, leases=1) as sandboxes:
        first = await sandboxes.pool(kinds[0], "lease")
        (held,) = await first.acquire()
        grading = await sandboxes.pool(kinds[1], "grade")
        with grading.in_use():
            for kind in kinds[2:]:
                async with (await sandboxes.pool(kind, "lease", 1)).take() as (sandbox,):
                    assert (await sandbox.run(["true"])).ok
            assert not first.closed
            assert not grading.closed
            assert (await held.sandbox.run(["true"])).ok
            # Those in use, as many idle ones as may be, and the one that was opened after the last look.
            await wait_until(lambda: len(sandboxes._open) <= 2 + 3 + 1, 40)
            assert sandboxes.metrics().taken == len(kinds) - 1, "those of closed pools count"
            assert await sandboxes.pool(kinds[0], "lease") is first
        held.release()
        await wait_until(lambda: first.idle_sandboxes == 1, 40)
        again = await sandboxes.pool(kinds[2], "lease", 1)
        async with again.take() as (sandbox,):
            assert (await sandbox.run(["true"])).ok


async def test_a_kind_that_takes_long_to_start_keeps_nobody_from_another(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, starts = SandboxSpec(limits=Limits(memory_mb=99)), anyio.Event()
    start_sandbox = pool_module.start_sandbox

    def start(backend: Backend, spec: SandboxSpec, **options: Any) -> AbstractAsyncContextManager[Sandbox]:
        return never() if spec == slow else start_sandbox(backend, spec, **options)

    @asynccontextmanager
    async def never() -> AsyncIterator[Sandbox]:
        starts.set()
        await anyio.sleep_forever()
        yield  # type: ignore[misc]

    monkeypatch.setattr(pool_module, "start_sandbox", start)
    async with open_sandboxes(backend=bubblewrap, leases=1) as sandboxes, anyio.create_task_group() as tasks:
        tasks.start_soon(sandboxes.pool, slow, "lease")
        with anyio.fail_after(40):
            await starts.wait()
            await sandboxes.pool(SandboxSpec(), "lease")
        tasks.cancel_scope.cancel()


async def test_a_backend_that_does_not_work_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match=r"no Docker engine answers.*start one, or set DOCKER_HOST"):
        async with open_pool(backend="docker"):
            pass
    with pytest.raises(SandboxError, match=r"no sandbox backend works here. docker: .*; bubblewrap: .* not installed"):
        async with open_pool():
            pass


async def test_episodes_that_hold_a_sandbox_and_ask_for_more_do_not_wait_for_each_other() -> None:
    """All hold their first before any asks for its second, as episodes do that start together; and some ask for two at once."""
    config = RunConfig.model_validate(
        {"sandbox": {"backend": "bubblewrap", "leases": 3, "wait_timeout_s": 60}, "rollout": {"max_concurrent": 3}}
    )
    holding, all_hold, ended = 0, anyio.Event(), 0

    async def play(episode: Episode) -> None:
        nonlocal holding, ended
        await episode.sandbox()
        holding += 1
        if holding == 3:
            all_hold.set()
        await all_hold.wait()
        async with anyio.create_task_group() as both:
            both.start_soon(episode.sandbox)
            both.start_soon(episode.sandbox)
        ended += 1

    async def start(client: openai.AsyncOpenAI) -> None:
        state = EpisodeState()
        try:
            await play(
                Episode(
                    task={},
                    seed=0,
                    client=client,
                    base_url="",
                    api_key="-",
                    model="m",
                    sandboxes=sandboxes,
                    state=state,
                )
            )
        finally:
            await state.close()

    async with ScriptedModel().open_client() as client, open_run_sandboxes(config) as sandboxes:
        async with anyio.create_task_group() as episodes:
            for _ in range(3):
                episodes.start_soon(start, client)
    assert ended == 3
