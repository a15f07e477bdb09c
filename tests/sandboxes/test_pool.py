"""The warm pool: bounded, first come first served, and never short of a sandbox that somebody forgot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from agentrl.config import RunConfig
from agentrl.episode import Episode, EpisodeState
from agentrl.errors import ConfigError, SandboxError
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.sandboxes import BackendName, Bubblewrap, Limits, Sandbox, SandboxSpec, grade, open_pool, open_sandboxes
from agentrl.sandboxes.grading.tests import AssertTest, IOTest
from agentrl.sandboxes.pool import default_size
from agentrl.sandboxes.run_sandboxes import RunSandboxes
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
    async with open_pool(backend=bubblewrap, size=4) as pool:
        for _ in range(3):
            async with pool.take(2):
                pass
        assert pool.metrics.started == 2
        async with pool.take(2), pool.take():
            pass
        assert pool.metrics.started == 3


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
        with pytest.raises(SandboxError, match=r"no sandbox or container was free within 2 s, of 1 at the same time"):
            async with pool.take():
                pass
        with pytest.raises(ConfigError, match="2 sandboxes at once from a pool of 1"):
            async with pool.take(2):
                pass
    with pytest.raises(ConfigError, match="spec = 'bubblewrap' must be an instance of SandboxSpec"):
        async with open_pool("bubblewrap"):  # type: ignore[arg-type]
            pass


async def test_a_closed_pool_leases_nothing(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool:
        pass
    with anyio.fail_after(40), pytest.raises(SandboxError, match="this pool of sandboxes is closed"):
        async with pool.take():
            pass


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


async def test_a_workflow_that_holds_a_sandbox_waits_for_no_verdict_of_its_own(bubblewrap: BackendName) -> None:
    async with open_sandboxes(backend=bubblewrap, graders=2, leases=1) as sandboxes:
        assert sandboxes.metrics() == {}
        async with sandboxes.sandbox(None, None, first=True):
            test = AssertTest(code="assert f() == 1")
            assert (await sandboxes.grade("def f(): return 1", [test])).passed  # takes two
        assert sandboxes.metrics()["sandbox_taken"] == 3


async def test_idle_sandboxes_are_bounded_over_all_kinds(bubblewrap: BackendName) -> None:
    """Tasks may have an image each: those that were used last stay, and those in use."""
    kinds = [Limits(memory_mb=100 + n) for n in range(6)]
    async with open_sandboxes(backend=bubblewrap, leases=2) as sandboxes:
        metrics = sandboxes.leases.metrics
        async with sandboxes.sandbox(None, kinds[0], first=True) as held:
            for number, kind in enumerate(kinds, start=1):
                async with sandboxes.sandbox(None, kind, first=True):
                    pass
                await wait_until(lambda number=number: metrics.resets == number, 40)  # type: ignore[misc]
            await wait_until(lambda: len(sandboxes.leases.idle) == 2, 40)
            assert (await held.run(["true"])).ok
            assert metrics.started == len(kinds) + 1
            assert metrics.lost == 0
            for kind in kinds[-2:]:
                async with sandboxes.sandbox(None, kind, first=False) as again:
                    assert (await again.run(["true"])).ok
            assert metrics.started == len(kinds) + 1, "those that were idle"


async def test_a_kind_that_takes_long_to_start_keeps_nobody_from_another(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, starts = SandboxSpec(limits=Limits(memory_mb=99)), anyio.Event()
    real = Bubblewrap.start

    def start(backend: Bubblewrap, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return never() if spec == slow else real(backend, spec)

    @asynccontextmanager
    async def never() -> AsyncIterator[Sandbox]:
        starts.set()
        await anyio.sleep_forever()
        yield  # type: ignore[misc]

    monkeypatch.setattr(Bubblewrap, "start", start)
    async with open_sandboxes(backend=bubblewrap, leases=2) as sandboxes, anyio.create_task_group() as tasks:
        tasks.start_soon(sandboxes.sandbox(None, slow.limits, first=True).__aenter__)
        with anyio.fail_after(40):
            await starts.wait()
            async with sandboxes.sandbox(None, None, first=True):
                pass
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


async def test_who_holds_a_sandbox_gets_another_before_all_who_wait(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool, anyio.create_task_group() as tasks:
        got = anyio.Event()

        async def wait() -> None:
            async with pool.take():
                got.set()

        async with pool.take():
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(60):
                async with pool.take(slots=0):
                    assert not got.is_set()
        await got.wait()


async def test_episodes_that_hold_a_sandbox_and_ask_for_more_do_not_wait_for_each_other() -> None:
    """All hold their first before any asks for its second, as episodes do that start together; and some ask for two at once."""
    config = RunConfig.model_validate({"sandbox": {"backend": "bubblewrap"}, "rollout": {"max_concurrent": 3}})
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

    async def start() -> None:
        state = EpisodeState()
        try:
            await play(
                Episode(
                    task={},
                    seed=0,
                    client=None,  # type: ignore[arg-type]  # it calls no model
                    base_url="",
                    api_key="-",
                    model="m",
                    sandboxes=sandboxes,
                    state=state,
                )
            )
        finally:
            await state.close()

    async with open_run_sandboxes(config) as sandboxes:
        async with anyio.create_task_group() as episodes:
            for _ in range(3):
                episodes.start_soon(start)
    assert ended == 3


@pytest.mark.parametrize("workers", [0, 1, 4])
async def test_a_worker_has_its_share_of_the_runs_sandboxes_and_two_to_grade_at_least(workers: int) -> None:
    config = RunConfig(rollout={"workers": workers, "max_concurrent": 6})
    async with open_run_sandboxes(config) as sandboxes:
        assert isinstance(sandboxes, RunSandboxes)
        sizes = sandboxes.graders.size, sandboxes.leases.size
    assert sizes == (max(2, -(-default_size() // max(1, workers))), -(-6 // max(1, workers)))
