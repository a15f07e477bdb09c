"""Workflows that do what they should not: each is its own episode's failure, and nobody else's."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import openai
import pytest
import torch

from agentrl import Episode, Reward
from agentrl.errors import BadRewardError, SandboxError
from agentrl.proxy import ChatFormat
from agentrl.reward import MAX_METRICS, METRICS_LEFT_OUT
from agentrl.rollout.workflow import Workflow
from agentrl.system.failure_text import MAX_TEXT_CHARS, describe
from tests.rollout.hostile_run import GROUP_SIZE, call, first_of_its_group, play
from tests.rollout.hostile_workflows import FAILURES


@pytest.mark.soak
@pytest.mark.parametrize(("hostile", "named"), FAILURES, ids=[workflow.__name__ for workflow, _ in FAILURES])
def test_whatever_a_workflow_ends_with_is_its_own_failure(
    nano_format: ChatFormat, tmp_path: Path, hostile: Workflow, named: str
) -> None:
    result = play(first_of_its_group(hostile), nano_format, tmp_path)
    assert (result.batches, result.open_groups, result.open_sessions) == (1, 0, 0)
    assert len(result.finished) == 2 * (GROUP_SIZE - 1), "every sibling finished"
    assert sorted(attempt.group for attempt in result.failed) == [0, 1]
    for attempt in result.failed:
        assert attempt.error is not None
        assert named in attempt.error
        assert "Traceback" in attempt.error
        assert len(attempt.error.encode()) < 2 * MAX_TEXT_CHARS
    assert result.controller.progress.reasons["hung"] == 0


async def cancels_itself_at_the_end(episode: Episode) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return 0.25


async def closes_its_client(episode: Episode) -> Any:
    async with episode.client.with_options(max_retries=0) as client:
        await client.models.list()
    with pytest.raises((RuntimeError, openai.APIConnectionError)):
        await call(episode)
    return 0.25


async def asks_300_times_at_once(episode: Episode) -> Any:
    await asyncio.gather(*(call(episode, f"{number} + 1 =") for number in range(300)))
    return 0.25


async def logs_without_end(episode: Episode) -> Any:
    for number in range(100_000):
        episode.log(**{f"metric {number}": number})
    return 0.25


async def spoils_its_task(episode: Episode) -> Any:
    episode.task["more"]["list"].clear()
    episode.task.clear()
    return 0.25


async def leaves_a_generator_open(episode: Episode) -> Any:
    async def numbers() -> AsyncIterator[int]:
        while True:
            try:
                yield 1
            finally:
                await asyncio.sleep(3600)

    generator = episode.generator = numbers()  # type: ignore[attr-defined]
    await anext(generator)
    return 0.25


async def earns_a_scalar_of_numpy(episode: Episode) -> Any:
    return Reward(np.float32(0.25), {"length": np.int64(3)})  # type: ignore[dict-item, arg-type]


async def earns_a_tensor(episode: Episode) -> Any:
    return torch.tensor(0.25)


@pytest.mark.soak
@pytest.mark.parametrize(
    "odd",
    [
        cancels_itself_at_the_end,
        closes_its_client,
        asks_300_times_at_once,
        logs_without_end,
        spoils_its_task,
        leaves_a_generator_open,
        earns_a_scalar_of_numpy,
        earns_a_tensor,
    ],
)
def test_odd_things_that_harm_nobody_are_no_failure(nano_format: ChatFormat, tmp_path: Path, odd: Workflow) -> None:
    async def nested(episode: Episode) -> Any:
        episode.task["more"] = {"list": [1]}
        return await odd(episode)

    result = play(first_of_its_group(nested), nano_format, tmp_path)
    assert (result.batches, result.open_groups, result.failed) == (1, 0, [])
    assert sorted(attempt.reward for attempt in result.finished) == [0.25] * 2 + [0.5] * 4
    if odd is logs_without_end:
        logged = next(attempt.metrics for attempt in result.finished if attempt.reward == 0.25)
        assert len(logged) == MAX_METRICS + 1
        assert logged[METRICS_LEFT_OUT] == 100_000 - MAX_METRICS


async def swallows(episode: Episode) -> Any:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


async def swallows_in_finally(episode: Episode) -> Any:
    try:
        await asyncio.sleep(30)
    finally:
        await swallows(episode)


async def swallows_in_a_scope(episode: Episode) -> Any:
    with anyio.CancelScope(shield=True):
        await swallows(episode)


async def closes_without_end(episode: Episode) -> Any:
    async def close() -> None:
        await swallows(episode)

    episode.env("agentrl/Calculator-v0").close = close
    return 1.0


async def is_late_and_closes_without_end(episode: Episode) -> Any:
    await closes_without_end(episode)
    await asyncio.sleep(30)


@pytest.mark.soak
@pytest.mark.parametrize(
    "hostile",
    [swallows, swallows_in_finally, swallows_in_a_scope, closes_without_end, is_late_and_closes_without_end],
)
def test_what_does_not_end_is_left_behind_and_named(
    nano_format: ChatFormat, tmp_path: Path, hostile: Workflow, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.perf_counter()
    result = play(first_of_its_group(hostile), nano_format, tmp_path, episode_timeout_s=2)
    assert time.perf_counter() - started < 25
    assert (result.batches, result.open_groups, result.open_sessions) == (1, 0, 0)
    assert len(result.finished) == 2 * (GROUP_SIZE - 1)
    assert sorted(attempt.group for attempt in result.failed) == [0, 1]
    line = swallows.__code__.co_firstlineno + 3
    for attempt in result.failed:
        assert f"{__file__}:{line} in swallows" in (attempt.error or "")
        assert "left behind" in (attempt.error or "")
        assert attempt.reason == "hung"
    assert result.controller.progress.reasons["hung"] == 2
    said = [record.getMessage() for record in caplog.records if "hung:" in record.getMessage()]
    assert len(said) == 1, "a place is named once"
    assert f"{__file__}:{line} in swallows" in said[0]


@pytest.mark.soak
def test_a_workflow_that_hangs_gets_no_more_replies(nano_format: ChatFormat, tmp_path: Path) -> None:
    refusals: list[int] = []

    async def goes_on(episode: Episode) -> Any:
        while True:
            try:
                await call(episode)
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
            except openai.APIStatusError as error:
                refusals.append(error.status_code)
                await anyio.sleep(0.01)

    async def run(episode: Episode) -> Any:
        if episode.task["n"] == 0:
            return await goes_on(episode)
        await call(episode)
        while not refusals:
            await anyio.sleep(0.01)
        return 1.0

    result = play(run, nano_format, tmp_path, groups=2, episode_timeout_s=3, max_concurrent=GROUP_SIZE)
    assert result.controller.progress.reasons["hung"] == GROUP_SIZE
    assert set(refusals) == {409}


@pytest.mark.soak
def test_a_run_that_is_stopped_does_not_wait_for_what_does_not_end(nano_format: ChatFormat, tmp_path: Path) -> None:
    running: list[int] = []

    async def run(episode: Episode) -> Any:
        await call(episode)
        running.append(episode.seed)
        child = asyncio.create_task(swallows(episode))
        await swallows(episode)
        await child

    started = time.perf_counter()
    result = play(run, nano_format, tmp_path, stop_when=lambda: len(running) == 2 * GROUP_SIZE)
    assert time.perf_counter() - started < 20
    assert result.attempts == [], "what was stopped is no failure: it goes on when the run is resumed"


@pytest.mark.soak
def test_work_that_is_stopped_in_order_has_time_for_its_end(nano_format: ChatFormat, tmp_path: Path) -> None:
    tidied: list[int] = []

    async def run(episode: Episode) -> Any:
        await call(episode)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.02)
            tidied.append(episode.seed)

    result = play(run, nano_format, tmp_path, groups=2, episode_timeout_s=0.5)
    assert len(tidied) == len(result.failed) == 2 * GROUP_SIZE
    assert result.controller.progress.reasons["hung"] == 0
    assert {"`rollout.episode_timeout_s` = 0.5 s" in (attempt.error or "") for attempt in result.failed} == {True}


def test_a_description_shows_causes_members_and_notes() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            inner.add_note("a note")
            raise ExceptionGroup("both", [ValueError("one"), TypeError("two")]) from inner
    except ExceptionGroup as group:
        text = describe(group)
    order = ["KeyError: 'inner'", "a note", "direct cause", "ExceptionGroup: both", "ValueError: one", "TypeError: two"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert f"{__file__}" in text


@pytest.mark.parametrize(
    "value", [1e6, -1e6, True, 3, np.float64(0.5), np.bool_(True), torch.tensor(2), np.ones(1), torch.ones(1, 1)]
)
def test_numbers_of_all_kinds_are_rewards(value: Any) -> None:
    earned = Reward.of(value).value
    assert type(earned) is float
    assert earned == np.asarray(value).item()


@pytest.mark.parametrize("value", [1.001e6, float("inf"), None, "1", b"1", 1j, [1.0], np.ones(2), np.str_("1")])
def test_all_else_is_refused(value: Any) -> None:
    with pytest.raises(BadRewardError):
        Reward.of(value)


async def ends(episode: Episode) -> Any:
    """Ends as its task says."""
    number = episode.task["n"]
    if number != 3:
        await call(episode)
    match number:
        case 0:
            raise ValueError("no")
        case 1:
            sys.exit(1)
        case 2:
            raise asyncio.CancelledError
        case 4:
            return "no number"
        case 5:
            raise SandboxError("there is none")
        case 6:
            await asyncio.sleep(60)
        case 9:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [SandboxError("there is none")])
        case 7:
            episode.trajectories = lambda root: 1 // 0
        case 8:

            async def close() -> None:
                raise OSError("it is open")

            episode.env("agentrl/Calculator-v0").close = close
    return 1.0


REASONS = ["error", "exit", "cancelled", "no_model_call", "bad_reward", "sandbox", "timeout", "trajectories", "close"]
REASONS += ["sandbox"]
"""A task group raises the one error of its tasks in a group."""


def test_the_reason_of_each_end_is_stored_and_counted(nano_format: ChatFormat, tmp_path: Path) -> None:
    reasons = [*REASONS, "finished"]
    result = play(ends, nano_format, tmp_path, groups=len(reasons), episode_timeout_s=4)
    expected = Counter({reason: GROUP_SIZE * count for reason, count in Counter(reasons).items()})
    assert Counter(attempt.reason for attempt in result.attempts) == expected
    assert result.controller.progress.reasons == expected
