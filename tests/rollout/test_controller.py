"""The controller on the real engine: what bad workflows do to an episode, and never to the run."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl import Episode, Reward
from agentrl.config import RolloutConfig
from agentrl.engine.client import EngineLimits, sglang_engine
from agentrl.errors import TooManyFailuresError, error_line
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.record.end_reason import EndReason
from agentrl.rollout.controller import Batch, Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.run_episode import EpisodeRunner, local_runner
from agentrl.rollout.workflow import Workflow
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.episodes import count_totals, resumed_groups
from agentrl.store.outcome import Outcome
from agentrl.store.rewards import rewards_in_order
from agentrl.store.rows import choice_of
from agentrl.store.store import Store
from agentrl.system.failure_text import users_part
from agentrl.tasks.curriculum import TaskList, Tasks
from agentrl.tasks.tasks import TaskStream
from tests.components import wait_until
from tests.engine.scripted_server import scripted_server, sound_states

pytestmark = pytest.mark.anyio
TASKS = [{"n": index} for index in range(5)]


async def call(episode: Episode, text: str = "1 + 1 =") -> Any:
    messages: list[Any] = [{"role": "user", "content": text}]
    return await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=3)


@asynccontextmanager
async def runner_of(
    workflow: Workflow, url: str, chat_format: ChatFormat, timeout_s: float = 30
) -> AsyncIterator[EpisodeRunner]:
    async with (
        sglang_engine([url]) as engine,
        open_proxy(engine, chat_format, "nano") as proxy,
        local_runner(workflow, proxy, timeout_s=timeout_s, defaults=SamplingDefaults()) as runner,
    ):
        yield runner


def all_episodes(store: Store) -> list[tuple[str, str | None]]:
    return store._db.execute("SELECT reason, error FROM episodes ORDER BY id").fetchall()


async def collect(
    workflow: Workflow,
    url: str,
    chat_format: ChatFormat,
    path: Path,
    *,
    batches: int = 1,
    tasks: Tasks | None = None,
    **config: Any,
) -> tuple[list[Batch], Controller, list[tuple[str, str | None]]]:
    """Run until so many batches are complete; the batches, the controller, and (status, error) of every episode."""
    settings = {"batch_size": 4, "group_size": 2, "max_concurrent": 8, "drop_uniform_groups": False, **config}
    rollout = RolloutConfig.model_validate(settings)
    with await in_thread(Store, path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        async with runner_of(workflow, url, chat_format, rollout.episode_timeout_s) as runner:
            gate = StalenessGate(groups_per_batch=rollout.groups_per_batch, max_staleness=1, window=1)
            controller = Controller(tasks or TaskList([TASKS]), rollout, 0, runner, store, gate)
            taken = []
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    group.start_soon(controller.run)
                    for _ in range(batches):
                        batch = await controller.next_batch()
                        if batch is None:
                            break
                        taken.append(batch)
                        controller.advance()
                    group.cancel_scope.cancel()
        rows = await in_thread(all_episodes, store)
    return taken, controller, rows


async def test_batches_hold_whole_groups_of_one_task(server_url: str, nano_format: ChatFormat, tmp_path: Path) -> None:
    async def run(episode: Episode) -> Reward:
        reply = await call(episode)
        episode.log(task=episode.task["n"], group_seed=episode.group_seed)
        episode.reward(reply.id, 0.25)
        return Reward(float(episode.task["n"]), metrics={"seed": float(episode.seed)})

    batches, controller, _ = await collect(run, server_url, nano_format, tmp_path, batches=3)
    assert [batch.group_ids for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    for batch in batches:
        assert batch.rewards[0] == batch.rewards[1]
        assert batch.rewards[2] == batch.rewards[3]
    first_epoch = [batch.rewards[i] for batch in batches for i in (0, 2)][:5]
    assert sorted(first_epoch) == [0, 1, 2, 3, 4]
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        (one, other) = await in_thread(store.episodes, [0])
        assert one.record.turns[0].reward == 0.25
        assert one.id != other.id
        logged = store._db.execute("SELECT group_id, metrics FROM episodes").fetchall()
        seeds = {(group, json.loads(metrics)["group_seed"]) for group, metrics in logged}
        assert len(seeds) == len({group for group, _ in seeds}) == len({seed for _, seed in seeds})
    assert controller.progress.failed == 0


async def raises(episode: Episode) -> float:
    await call(episode)
    raise ZeroDivisionError("from the workflow")


async def earns_nan(episode: Episode) -> float:
    await call(episode)
    return float("nan")


async def test_a_reward_that_is_none_is_said_with_the_workflow_that_returned_it(
    server_url: str, nano_format: ChatFormat
) -> None:
    async with runner_of(earns_nan, server_url, nano_format) as runner:
        outcome = await runner.run(TASKS[0], 0)
    assert outcome.error is not None
    line = earns_nan.__code__.co_firstlineno + 2
    assert error_line(outcome.error).startswith("BadRewardError: the reward is nan")
    assert users_part(outcome.error).endswith(f"(returned at {__file__}:{line} in earns_nan)")


async def exits(episode: Episode) -> float:
    await call(episode)
    sys.exit(3)


async def hangs(episode: Episode) -> float:
    await call(episode)
    await anyio.sleep(60)
    return 0.0


async def never_calls(episode: Episode) -> float:
    return 1.0


async def returns_nan(episode: Episode) -> float:
    await call(episode)
    return math.nan


async def returns_text(episode: Episode) -> Any:
    await call(episode)
    return "good"


async def credits_nobody(episode: Episode) -> float:
    await call(episode)
    episode.reward("chatcmpl-unknown", 1.0)
    return 1.0


async def cannot_close(episode: Episode) -> float:
    await call(episode)

    def close() -> None:
        raise OSError("the environment does not close")

    episode.env("agentrl/Calculator-v0").close = close  # type: ignore[method-assign]
    return 1.0


async def asks_too_much(episode: Episode) -> float:
    await call(episode, "1 " * 2000)
    return 1.0


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (raises, "ZeroDivisionError: from the workflow"),
        (exits, "SystemExit: 3"),
        (hangs, "`rollout.episode_timeout_s` = 3"),
        (never_calls, "without calling the model"),
        (returns_nan, "the reward is nan; it must be a finite number"),
        (returns_text, "returned 'good' of type str"),
        (credits_nobody, "no model call of this episode has the id 'chatcmpl-unknown'"),
        (cannot_close, "OSError: the environment does not close"),
        (asks_too_much, "maximum context length is 1024 tokens"),
    ],
)
async def test_a_bad_episode_is_recorded_with_its_traceback_and_the_run_goes_on(
    server_url: str, nano_format: ChatFormat, tmp_path: Path, bad: Workflow, named: str
) -> None:
    async def run(episode: Episode) -> Any:
        if episode.task["n"] == 0:
            return await bad(episode)
        await call(episode)
        return 1.0

    bounds = {"episode_timeout_s": 3, "retries": 0} if bad is hangs else {}
    batches, controller, rows = await collect(run, server_url, nano_format, tmp_path, batches=3, **bounds)
    failed = [error or "" for status, error in rows if status != "finished"]
    assert len(batches) == 3
    assert failed
    raised = "" if bad is never_calls else "Traceback"
    assert [error for error in failed if named not in error or raised not in error] == []
    assert controller.progress.rejected_groups >= 1


async def test_a_failed_episode_is_tried_again(server_url: str, nano_format: ChatFormat, tmp_path: Path) -> None:
    attempts: dict[int, int] = {}

    async def run(episode: Episode) -> float:
        await call(episode)
        attempts[episode.seed] = attempts.get(episode.seed, 0) + 1
        if attempts[episode.seed] == 1:
            raise RuntimeError("the first time")
        return 1.0

    _, controller, rows = await collect(run, server_url, nano_format, tmp_path, retries=1)
    assert controller.progress.failed == 0
    assert controller.progress.rejected_groups == 0
    assert [status for status, _ in rows].count("finished") >= 4
    assert [status != "finished" for status, _ in rows].count(True) >= 4


def iter_leaves(error: BaseException | None) -> Iterator[BaseException]:
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from iter_leaves(inner) if isinstance(inner, BaseExceptionGroup) else (inner,)


async def test_too_many_failures_stop_the_run_with_the_last_one(
    server_url: str, nano_format: ChatFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ExceptionGroup) as stopped:
        await collect(raises, server_url, nano_format, tmp_path, retries=0, max_failed_share=0.5)
    matching, rest = stopped.value.split(TooManyFailuresError)
    assert rest is None
    shown = str(next(iter_leaves(matching)))
    assert "`rollout.max_failed_share` = 0.5" in shown
    assert "ZeroDivisionError: from the workflow" in shown
    (first,) = (record.message for record in caplog.records if "ZeroDivisionError: from the workflow" in record.message)
    assert re.fullmatch(r"episode \d+ failed: .*\. agentrl episodes .* \d+ shows its traceback; .*", first)


async def test_uniform_groups_are_dropped_and_give_their_slots_back(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    async def run(episode: Episode) -> float:
        await call(episode)
        return float(episode.seed % 7) if episode.task["n"] % 2 else 1.0

    batches, controller, _ = await collect(run, server_url, nano_format, tmp_path, batches=2, drop_uniform_groups=True)
    assert controller.progress.rejected_groups >= 1
    for batch in batches:
        assert batch.rewards[0] != batch.rewards[1]
        assert batch.rewards[2] != batch.rewards[3]


async def test_a_solved_task_set_does_not_stall_the_run_and_a_line_says_why_its_groups_are_trained_on(
    server_url: str, nano_format: ChatFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(episode: Episode) -> float:
        await call(episode)
        return 1.0

    batches, controller, _ = await collect(run, server_url, nano_format, tmp_path, drop_uniform_groups=True)
    assert batches[0].rewards == [1.0] * 4
    assert controller.progress.rejected_groups == 40
    assert (
        caplog.text.count(
            "40 groups in a row were dropped (`rollout.drop_uniform_groups`): until rewards differ, equal"
        )
        == 1
    )
    _, again, _ = await collect(run, server_url, nano_format, tmp_path, batches=3, drop_uniform_groups=True)
    assert again.progress.rejected_groups == 0, "a run that goes on knows how many were equal before"
    assert again.health.highest_reward == controller.health.highest_reward


async def test_groups_that_failed_are_no_reason_to_train_on_equal_rewards(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    async def run(episode: Episode) -> float:
        await call(episode)
        if episode.task["n"]:
            raise ValueError("no")
        return 1.0

    tasks = TaskList([[{"n": min(index, 1)} for index in range(50)] + [{"n": 0}] * 2], order="in_order", epochs=1)
    batches, controller, _ = await collect(
        run, server_url, nano_format, tmp_path, tasks=tasks, drop_uniform_groups=True, max_failed_share=1.0, retries=0
    )
    assert (batches, controller.progress.rejected_groups) == ([], 52)


async def test_a_restart_completes_open_groups_and_reuses_ready_ones(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    blocked = anyio.Event()
    calls: list[int] = []

    async def run(episode: Episode) -> float:
        await call(episode)
        calls.append(episode.seed)
        if len(calls) > 5 and not blocked.is_set():
            await anyio.sleep(60)
        return float(len(calls))

    await collect(run, server_url, nano_format, tmp_path, batches=1, max_concurrent=4)
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        before = (await in_thread(store.read, count_totals)).finished
        kept = {group.id: len(group.rewards) for group in await in_thread(store.read, resumed_groups)}
    assert sum(kept.values()) == before
    blocked.set()
    batches, _, rows = await collect(run, server_url, nano_format, tmp_path, batches=2, max_concurrent=4)
    assert batches[0].group_ids == [0, 1], "finished groups that no checkpoint contains are used first"
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        for batch in batches:
            assert len(await in_thread(store.episodes, batch.group_ids)) == 2 * len(batch.group_ids)
    assert len([status for status, _ in rows if status == "finished"]) >= before


async def test_after_a_restart_unfinished_groups_wait_until_the_staleness_bound_holds_for_them(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    """The run was killed at a later version, and goes on from its last checkpoint, of version 0: six groups are open, two may start."""
    begun: list[int] = []

    async def run(episode: Episode) -> float:
        begun.append(episode.seed)
        await anyio.sleep_forever()
        return 0.0

    rollout = RolloutConfig(batch_size=2, group_size=2, max_concurrent=100)
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        for group in range(6):
            await in_thread(store.write, [OpenGroup(group, 0, group % len(TASKS))])
        async with runner_of(run, server_url, nano_format) as runner, anyio.create_task_group() as running:
            gate = StalenessGate(groups_per_batch=1, max_staleness=1, window=1)
            controller = Controller(TaskList([TASKS]), rollout, 0, runner, store, gate)
            running.start_soon(controller.run)
            for may_run in (4, 6):
                await wait_until(lambda may_run=may_run: len(begun) >= may_run, 60)  # type: ignore[misc]
                assert controller.progress.running + controller._waiting == may_run
                controller.advance()
            running.cancel_scope.cancel()


async def test_a_step_that_is_taken_again_counts_the_groups_that_it_had_counted(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    rollout = RolloutConfig(batch_size=1, group_size=1)
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        for group in range(6):
            ended = Outcome(reason=EndReason.FINISHED, reward=float(group))
            changes = [OpenGroup(group, 0, group), InsertEpisode(group, 0, 0, ended), CloseGroup(group)]
            await in_thread(store.write, changes)
        async with runner_of(call, server_url, nano_format) as runner:
            gate = StalenessGate(groups_per_batch=1, max_staleness=1, window=1, version=1)
            undone = {2: 3, 3: 4}
            controller = Controller(TaskList([TASKS]), rollout, 0, runner, store, gate, counted=1, undone=undone)
            means = []
            for _ in range(3):
                controller.advance()
                means.append((await controller.take_rewards()).mean)
    assert means == [(1 + 2) / 2, 3, (4 + 5) / 2]


async def test_no_more_episodes_are_said_to_run_than_may(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    inside, said, most = 0, list[int](), list[int]()
    seen: list[Controller] = []

    async def run(episode: Episode) -> float:
        nonlocal inside
        inside += 1
        most.append(inside)
        said.append(seen[0].progress.running)
        await call(episode)
        await anyio.sleep(0.01)
        inside -= 1
        return float(len(said))

    def noted(self: Controller) -> None:
        seen.append(self)
        started(self)

    started = Controller.__post_init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "__post_init__", noted)
        _, controller, _ = await collect(
            run, server_url, nano_format, tmp_path, batches=2, batch_size=8, group_size=8, max_concurrent=3
        )
    assert max(said) == max(most) == 3
    assert controller.progress.running == controller._waiting == 0


async def test_nothing_runs_on_after_the_run_is_cancelled(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    running, waits = 0, anyio.Event()

    async def run(episode: Episode) -> float:
        nonlocal running
        running += 1
        try:
            await call(episode)
            if episode.task["n"]:
                waits.set()
                await anyio.sleep(30)
        finally:
            running -= 1
        return 1.0

    rollout = RolloutConfig(batch_size=2, group_size=2)
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        async with runner_of(run, server_url, nano_format) as runner:
            gate = StalenessGate(groups_per_batch=1, max_staleness=3, window=1)
            controller = Controller(TaskList([TASKS]), rollout, 0, runner, store, gate)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    group.start_soon(controller.run)
                    await waits.wait()
                    assert running > 0
                    group.cancel_scope.cancel()
            assert running == 0
            assert runner.proxy is not None
            assert len(runner.proxy.sessions) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_epoch_ends_with_the_groups_that_are_left(
    server_url: str, nano_format: ChatFormat, tmp_path: Path, stream: bool
) -> None:
    """Two epochs of five tasks, two of them dropped as uniform: eight groups, in batches of three."""

    async def run(episode: Episode) -> float:
        await call(episode)
        return 1.0 if episode.task["n"] == 3 else float(episode.seed % 1000)

    tasks: Tasks = TaskStream(lambda: iter(TASKS), epochs=2) if stream else TaskList([TASKS], epochs=2)
    batches, controller, _ = await collect(
        run, server_url, nano_format, tmp_path, batches=9, tasks=tasks, batch_size=6, drop_uniform_groups=True
    )
    assert [len(batch.group_ids) for batch in batches] == [3, 3, 2]
    assert len({group for batch in batches for group in batch.group_ids}) == 8
    assert controller.progress.rejected_groups == 2
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        visited = await in_thread(lambda: store._db.execute("SELECT task FROM groups").fetchall())
    assert sorted(task for (task,) in visited) == sorted([*range(5), *range(5)])


async def test_a_stream_of_tasks_that_blocks_does_not_keep_a_run_from_ending(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    release, blocked = threading.Event(), threading.Event()

    def tasks() -> Iterator[Any]:
        yield {"n": 0}
        blocked.set()
        release.wait(60)

    async def run(episode: Episode) -> float:
        await call(episode)
        return 1.0

    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        async with runner_of(run, server_url, nano_format) as runner:
            gate = StalenessGate(groups_per_batch=1, max_staleness=3, window=1)
            rollout = RolloutConfig(batch_size=2, group_size=2)
            controller = Controller(TaskStream(tasks), rollout, 0, runner, store, gate)
            try:
                with anyio.fail_after(30):
                    async with anyio.create_task_group() as group:
                        group.start_soon(controller.run)
                        assert await in_thread(blocked.wait, 20)
                        group.cancel_scope.cancel()
            finally:
                release.set()


async def test_equal_rewards_do_not_drop_a_group_whose_calls_have_their_own(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    async def run(episode: Episode) -> float:
        seat = episode.role("first")
        messages: list[Any] = [{"role": "user", "content": "1 + 1 ="}]
        await seat.client.chat.completions.create(model=seat.model, messages=messages, max_tokens=3)
        seat.reward(float(episode.seed % 2))
        return 0.0

    batches, controller, _ = await collect(run, server_url, nano_format, tmp_path, drop_uniform_groups=True)
    assert len(batches) == 1
    assert controller.progress.rejected_groups == 0


async def test_a_task_that_cannot_be_used_is_skipped_and_counted_and_the_run_goes_on(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    """A generator that yields what is no task, and later raises: two epochs of two usable tasks."""

    def tasks() -> Iterator[Any]:
        yield {"n": 0}
        yield "no task"
        yield {"n": 1}
        raise ZeroDivisionError("in the middle")

    async def run(episode: Episode) -> float:
        await call(episode)
        return 1.0

    batches, controller, rows = await collect(
        run, server_url, nano_format, tmp_path, batches=3, tasks=TaskStream(tasks, epochs=2), max_failed_share=1.0
    )
    assert [len(batch.group_ids) for batch in batches] == [2, 2]
    assert controller.progress.skipped_tasks == 4
    assert controller.progress.failed == 8
    assert [status != "finished" for status, _ in rows].count(True) == 8
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        found = await in_thread(
            lambda: store._db.execute("SELECT id, rejected FROM groups WHERE state = 'rejected' ORDER BY id").fetchall()
        )
        counted = await in_thread(store.read, lambda db: rewards_in_order(db, 0))
    assert [group.id for group in counted] == list(range(8)), "a task that is skipped holds no other's reward back"
    assert [group.failed for group in counted] == [0, 2] * 4
    assert [group for group, _ in found] == [1, 3, 5, 7]
    assert "must be a JSON object, not str" in found[0][1]
    assert "ZeroDivisionError: in the middle" in found[1][1]


async def test_a_server_that_says_what_cannot_be_right_fails_episodes_at_most_and_nothing_of_it_is_stored(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    """Beside a sound server, one that reports NaN: no episode fails. Alone, it fails every episode, and the run says why."""

    def unsound(body: Any) -> Any:
        states = sound_states(3)
        for state in states:
            state["meta_info"]["prompt_tokens"] = len(body["input_ids"])
            state["meta_info"]["output_token_logprobs"][0][0] = math.nan
        return states

    async def run(episode: Episode) -> float:
        await call(episode)
        return 1.0

    rollout = RolloutConfig(batch_size=4, group_size=2, max_concurrent=8, retries=0, drop_uniform_groups=False)
    quick = EngineLimits(health_interval_s=0.2)  # a server that is out of service comes back after that

    async def restart(urls: list[str]) -> tuple[list[Any], list[tuple[str, str | None]], int]:
        with await in_thread(Store, tmp_path / f"{len(urls)}.sqlite") as store:
            await in_thread(store.begin_restart)
            async with (
                sglang_engine(urls, limits=quick, vocabulary=len(nano_format.tokenizer)) as engine,
                open_proxy(engine, nano_format, "nano") as proxy,
                local_runner(run, proxy, timeout_s=30, defaults=SamplingDefaults()) as runner,
            ):
                gate = StalenessGate(groups_per_batch=2, max_staleness=1, window=1)
                controller = Controller(TaskList([TASKS], epochs=8), rollout, 0, runner, store, gate)
                with anyio.fail_after(60):
                    async with anyio.create_task_group() as group:
                        group.start_soon(controller.run)
                        await controller.next_batch()
                        group.cancel_scope.cancel()
            groups = [group.id for group in await in_thread(store.read, resumed_groups) if group.state == "ready"]
            episodes = await in_thread(store.episodes, groups)
            return [e.record for e in episodes], await in_thread(all_episodes, store), engine.fleet.bad_replies

    async with scripted_server(unsound) as ill:
        records, rows, bad = await restart([ill.url, server_url])
        assert bad > 0
        assert {status for status, _ in rows} == {"finished"}
        for record in records:
            assert all(math.isfinite(logprob) for turn in record.turns for logprob in turn.logprobs)
        with pytest.raises(ExceptionGroup) as stopped:
            await restart([ill.url])
        assert stopped.value.split(TooManyFailuresError)[1] is None
        assert "the logprob of token 0 is nan" in str(next(iter_leaves(stopped.value)))


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (
            {"logprobs": b"J[NaN]", "output_ids": b"J[5]", "versions": b"J[0, 0, 1]"},
            "turn 0: the logprob of token 0 is nan",
        ),
        (
            {"logprobs": b"J[-1.0]", "output_ids": b"J[1000000]", "versions": b"J[0, 0, 1]"},
            "turn 0: token 0 is 1000000, outside the vocabulary",
        ),
        ({"versions": b"J[]"}, r"turn 0: its version spans cover 0 of \d tokens"),
        ({"output_ids": b"i\x00"}, "its record cannot be read: ValueError"),
        pytest.param(
            {"record": b'{"parent": [-1], "prompt_length": [1], "temperature": [1.0], "reward": [Infinity]}'},
            "it was given the reward inf",
            marks=pytest.mark.soak,
        ),
        (
            {"record": b'{"parent": [-1], "prompt_length": [1], "temperature": [NaN]}'},
            "turn 0: its temperature is nan",
        ),
        ({"record": b'{"parent": [0], "prompt_length": [1]}'}, "turn 0 extends one that comes later"),
        pytest.param({"record": b'{"parent": [-1]}'}, "its record cannot be read: KeyError", marks=pytest.mark.soak),
        pytest.param({"record": b'{"parent'}, "its record cannot be read: JSONDecodeError", marks=pytest.mark.soak),
        pytest.param({"prompt_ids": b"H"}, "its record cannot be read: ValueError", marks=pytest.mark.soak),
    ],
    ids=[
        "NaN",
        "outside the vocabulary",
        "no versions",
        "torn",
        "infinite reward",
        "no temperature",
        "order",
        "a field",
        "corrupt",
        "ids",
    ],
)
async def test_what_is_stored_and_cannot_be_trained_on_is_set_aside_and_made_again(
    server_url: str, nano_format: ChatFormat, tmp_path: Path, spoilt: dict[str, bytes], reason: str
) -> None:
    async def run(episode: Episode) -> float:
        await call(episode)
        return float(episode.seed % 1000)

    await collect(run, server_url, nano_format, tmp_path, batches=1)
    with await in_thread(Store, tmp_path / "store.sqlite") as store:

        def damage() -> None:
            (episode, ids) = store._db.execute(
                "SELECT id, prompt_ids FROM episodes WHERE group_id = 0 AND episode_index = 0"
            ).fetchone()
            for name, value in spoilt.items():
                table, key = ("episodes", "id") if name in ("record", "prompt_ids") else ("calls", "episode")
                store._db.execute(f"UPDATE {table} SET {name} = ? WHERE {key} = ?", (value, episode))
            if "record" in spoilt:
                store._db.execute("UPDATE episodes SET prompt_ids = ? WHERE id = ?", (ids[:3], episode))
            store._db.execute(
                "INSERT INTO calls VALUES (0, 0, NULL, NULL, 'digest', 'id', 0, '[]', x'00', x'', x'', 'stop', 0, NULL)"
            )

        await in_thread(damage)
        (said,) = await in_thread(store.reject_episodes, len(nano_format.tokenizer))
        assert re.search(rf"episode \d is set aside.*{reason}", said)
        assert await in_thread(store.reject_episodes, len(nano_format.tokenizer)) == []
        (logged,) = await in_thread(store.logged_calls, 0, 0)
        assert choice_of(logged) is None, "a kept call that cannot be read is asked for again"
    batches, _, rows = await collect(run, server_url, nano_format, tmp_path, batches=1)
    assert batches[0].group_ids == [0, 1]
    assert len(batches[0].rewards) == 4, "the episode was run again"
    assert any(status != "finished" and re.search(reason, error or "") for status, error in rows)
