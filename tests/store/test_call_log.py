"""An episode that starts over makes no model call again that it had made: on the real engine, through the real store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl import Episode
from agentrl.engine.client import sglang_engine
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice, recorded_choices
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.run_episode import EpisodeRunner, local_runner
from agentrl.rollout.workflow import Workflow
from agentrl.store.call_log import EpisodeCallLog, StoreWriter, open_call_log
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.rows import choice_of, row_of
from agentrl.store.store import Store
from tests.components import wait_until
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turns", range(12))
async def test_a_reply_that_was_handed_over_is_written_whenever_the_run_is_cancelled(turns: int, store: Store) -> None:
    whole = Generation(output_ids=[1], logprobs=[-0.1], versions=[VersionSpan(0, 0, 1)], finish="stop")
    with anyio.CancelScope() as scope:
        async with open_call_log(store) as call_logs, anyio.create_task_group() as group:
            call_log = call_logs.episode(0, 0)
            group.start_soon(call_log.commit, RecordedChoice("request", "call", 0, [], whole))
            for _ in range(turns + 1):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
            await anyio.sleep_forever()
    assert len(await in_thread(store.logged_calls, 0, 0)) == 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.write, [OpenGroup(0, 0, 0)])
        yield store


@asynccontextmanager
async def running(workflow: Workflow, url: str, chat_format: ChatFormat) -> AsyncIterator[tuple[EpisodeRunner, Tapped]]:
    async with sglang_engine([url]) as raw:
        engine = Tapped(raw)
        async with (
            open_proxy(engine, chat_format, "nano") as proxy,
            local_runner(workflow, proxy, timeout_s=60, defaults=SamplingDefaults()) as runner,
        ):
            yield runner, engine


async def attempt(
    workflow: Workflow,
    url: str,
    chat_format: ChatFormat,
    store: Store,
    *,
    stop_when: Callable[[StoreWriter], bool] | None = None,
) -> tuple[Outcome | None, Tapped, int]:
    """One run of the episode; its outcome, unless it was stopped, the engine's calls, and the tokens taken from the record."""
    outcome: Outcome | None = None
    async with running(workflow, url, chat_format) as (runner, engine):
        kept = await in_thread(store.logged_calls, 0, 0)
        async with open_call_log(store) as call_logs:
            call_log = call_logs.episode(0, 0, kept)

            async def live() -> None:
                nonlocal outcome
                outcome = await runner.run({"n": 1}, 5, call_log=call_log)

            async with anyio.create_task_group() as group:
                group.start_soon(live)
                if stop_when is not None:
                    await wait_until(lambda: stop_when(call_logs), timeout_s=30)
                    group.cancel_scope.cancel()
    return outcome, engine, call_log.replayed_tokens


async def ask(episode: Episode, messages: list[Any], **options: Any) -> Any:
    return await episode.client.chat.completions.create(
        model=episode.model, messages=messages, **{"max_tokens": 12, **options}
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_that_were_answered_are_answered_again_at_once_and_token_for_token(
    server_url: str, nano_format: ChatFormat, store: Store, stream: bool
) -> None:
    runs: list[list[Any]] = []
    goes_on = waits = False

    async def run(episode: Episode) -> float:
        nonlocal waits
        said: list[Any] = []
        runs.append(said)
        messages: list[Any] = [{"role": "user", "content": "1 + 1 ="}]
        for turn in range(4):
            if turn == 3 and not goes_on:
                waits = True
                await anyio.sleep(60)
            if stream:
                chunks = [chunk async for chunk in await ask(episode, messages, stream=True, temperature=1.4)]
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                said.append((chunks[0].id, [text]))
            else:
                reply = await ask(episode, messages, n=2, temperature=1.4)
                said.append((reply.id, [choice.message.content for choice in reply.choices]))
            messages += [{"role": "assistant", "content": said[-1][1][-1]}, {"role": "user", "content": f"+ {turn} ="}]
        return 1.0

    stopped, first, _ = await attempt(run, server_url, nano_format, store, stop_when=lambda _: waits)
    assert stopped is None
    replies = 3 if stream else 6
    assert len(first.calls) == replies
    goes_on = True
    outcome, second, replayed = await attempt(run, server_url, nano_format, store)
    assert outcome is not None
    assert outcome.reason == "finished", outcome.error
    assert runs[1][:3] == runs[0]
    assert len(second.calls) == (1 if stream else 2), "only the fourth call was generated"
    assert replayed == sum(len(generation.output_ids) for _, generation in first.calls)
    assert_record_is_what_the_engine_saw(outcome.record, first.calls + second.calls)

    # A third time, from the record alone.
    await in_thread(store.write, [InsertEpisode(0, 0, 5, outcome)])
    assert await in_thread(store.logged_calls, 0, 0) == []
    async with running(run, server_url, nano_format) as (runner, engine), open_call_log(store) as call_logs:
        again = await runner.run(
            {"n": 1}, 5, call_log=call_logs.episode(0, 0, map(row_of, recorded_choices(outcome.record)))
        )
    assert engine.calls == []
    assert calls_of(again.record) == calls_of(outcome.record)


@pytest.mark.parametrize("cut_off_at", [1, 2, 3, 4])
async def test_equal_prompts_of_one_request_are_each_answered_again_with_their_own_replies(
    server_url: str, nano_format: ChatFormat, store: Store, cut_off_at: int
) -> None:
    """The crash comes when so many of the request's four replies are kept; the others are generated once more."""

    async def run(episode: Episode) -> float:
        many = await episode.client.completions.create(
            model=episode.model, prompt=["1 + 1 =", "1 + 1 ="], n=2, max_tokens=12, temperature=1.4
        )
        replies.append((many.id, [choice.text for choice in many.choices]))
        episode.reward(many.id, 0.5)
        if not goes_on:
            await anyio.sleep(60)
        return 1.0

    replies: list[tuple[str, list[str]]] = []
    goes_on, kept = False, 0

    async def keep_some(call_log: EpisodeCallLog, choice: RecordedChoice) -> None:
        nonlocal kept
        if kept == cut_off_at:
            await anyio.sleep(60)
        kept += 1
        await keeps(call_log, choice)

    keeps = EpisodeCallLog.commit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EpisodeCallLog, "commit", keep_some)
        await attempt(run, server_url, nano_format, store, stop_when=lambda _: kept == cut_off_at)
    logged = [choice for row in await in_thread(store.logged_calls, 0, 0) if (choice := choice_of(row))]
    assert len({(choice.completion_id, choice.choice_index) for choice in logged}) == len(logged)
    assert len(logged) == cut_off_at
    goes_on = True
    outcome, second, _ = await attempt(run, server_url, nano_format, store)
    assert outcome is not None
    assert outcome.reason == "finished", outcome.error
    assert len(second.calls) == 4 - cut_off_at, "only what was not kept was generated"
    turns = {(turn.completion_id, turn.choice_index): turn for turn in outcome.record.turns}
    assert sorted(turns) == [(replies[-1][0], index) for index in range(4)], "the id that the client was told"
    for choice in logged:
        begun, whole = choice.generation.output_ids, turns[choice.completion_id, choice.choice_index].output_ids
        assert whole[: len(begun)] == begun
    assert [turn.reward for turn in turns.values()] == [0.5] * 4, "the id stands for all that was asked with it"
    assert len(replies) == 1 or replies[0] == replies[1]


def calls_of(record: TokenRecord) -> dict[tuple[str, int], Any]:
    """Every reply, whichever of a call's choices ended first."""
    calls = {
        (turn.completion_id, turn.choice_index): {
            **vars(turn),
            "parent": turn.parent and (turn.parent.completion_id, turn.parent.choice_index),
        }
        for turn in record.turns
    }
    assert len(calls) == len(record.turns)
    return calls


async def test_a_request_that_differs_is_a_new_branch_and_the_old_one_is_discarded(
    server_url: str, nano_format: ChatFormat, store: Store
) -> None:
    runs, waits = 0, False

    async def run(episode: Episode) -> float:
        nonlocal runs, waits
        runs += 1
        first = await ask(episode, [{"role": "user", "content": "1 + 1 ="}])
        history = [
            {"role": "user", "content": "1 + 1 ="},
            {"role": "assistant", "content": first.choices[0].message.content},
        ]
        # The environment says something else in each run.
        for turn in range(2):
            await ask(episode, [*history, {"role": "user", "content": f"run {runs} {turn}"}])
        if runs == 1:
            waits = True
            await anyio.sleep(60)
        return 1.0

    _, first, _ = await attempt(run, server_url, nano_format, store, stop_when=lambda _: waits)
    assert len(first.calls) == 3
    outcome, second, replayed = await attempt(run, server_url, nano_format, store)
    assert outcome is not None
    assert replayed == len(first.calls[0][1].output_ids)
    assert_record_is_what_the_engine_saw(outcome.record, [first.calls[0], *second.calls])
    assert len(second.calls) == 2


async def test_equal_requests_get_their_replies_in_order_and_other_sampling_is_another_request(
    server_url: str, nano_format: ChatFormat, store: Store
) -> None:
    runs: list[list[str]] = []
    waits = False

    async def run(episode: Episode) -> float:
        nonlocal waits
        said: list[str] = []
        runs.append(said)
        for temperature in (2.0, 2.0, 2.0, 1.9 if len(runs) == 1 else 1.8):
            reply = await ask(episode, [{"role": "user", "content": "1 + 1 ="}], temperature=temperature)
            said.append(reply.choices[0].message.content)
        if len(runs) == 1:
            waits = True
            await anyio.sleep(60)
        return 1.0

    await attempt(run, server_url, nano_format, store, stop_when=lambda _: waits)
    outcome, engine, _ = await attempt(run, server_url, nano_format, store)
    assert outcome is not None
    assert runs[1][:3] == runs[0][:3]
    assert len(engine.calls) == 1
    assert len(outcome.record.turns) == 4


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [6, pytest.param(20, marks=pytest.mark.soak)])
async def test_nothing_of_an_attempt_is_kept_after_its_end_however_busy_the_store_is(
    store: Store, attempts: int
) -> None:
    """A reply was on its way to the store when the attempt ended: the next attempt must not be given it."""
    generation = Generation(output_ids=[1, 2], logprobs=[-1.0, -1.0], versions=[VersionSpan(0, 0, 2)], finish="stop")
    choice = RecordedChoice("request", "call", 0, [], generation)
    async with open_call_log(store) as call_logs:
        for episode_index in range(attempts):
            call_log = call_logs.episode(0, episode_index)
            await in_thread(store._lock.acquire)
            threading.Timer(0.02, store._lock.release).start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call_log.commit, choice)
                await anyio.sleep(0.002 * (episode_index % 3))
                ended = Outcome(reason=EndReason.ERROR, error="timeout")
                await call_logs.commit(InsertEpisode(0, episode_index, 1, ended, call_log.close()))
    for episode_index in range(attempts):
        assert await in_thread(store.logged_calls, 0, episode_index) == []
