"""Workflows that do what they should not: each is its own episode's failure, and nobody else's."""

from __future__ import annotations

import asyncio
import sys
import time
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
from agentrl.episode import MAX_METRICS, METRICS_LEFT_OUT
from agentrl.errors import BadRewardError
from agentrl.failure_text import MAX_TEXT_CHARS, describe
from agentrl.proxy import ChatFormat
from agentrl.rollout.workflow import Workflow
from tests.rollout.hostile_run import GROUP_SIZE, call, first_of_its_group, play

SURROGATE = "half a character: \ud83d"


class Panic(BaseException):
    """What an extension module written in Rust raises is no Exception."""


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitsAsTextError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


async def raises_cancelled(episode: Episode) -> Any:
    raise asyncio.CancelledError


async def raises_cancelled_with_half_a_character(episode: Episode) -> Any:
    raise asyncio.CancelledError(SURROGATE)


async def cancels_its_task(episode: Episode) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(30)


async def is_cancelled_by_a_callback(episode: Episode) -> Any:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(30)


async def leaks_a_cancelled_scope(episode: Episode) -> Any:
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()
    await anyio.sleep(30)


async def leaves_scopes_in_the_wrong_order(episode: Episode) -> Any:
    outer, inner = anyio.CancelScope(), anyio.CancelScope()
    outer.__enter__()
    inner.__enter__()
    outer.cancel()
    outer.__exit__(None, None, None)


async def cancels_within_a_timeout(episode: Episode) -> Any:
    async with asyncio.timeout(30):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(30)


async def turns_a_timeout_into_a_cancellation(episode: Episode) -> Any:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    except TimeoutError:
        raise asyncio.CancelledError from None


async def panics(episode: Episode) -> Any:
    raise Panic("called `Option::unwrap()` on a `None` value")


async def raises_generator_exit(episode: Episode) -> Any:
    raise GeneratorExit("from the workflow")


async def raises_keyboard_interrupt(episode: Episode) -> Any:
    raise KeyboardInterrupt("from the workflow")


async def exits(episode: Episode) -> Any:
    sys.exit("from the workflow")


async def _interrupts() -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt("from a child")


async def has_a_child_that_interrupts(episode: Episode) -> Any:
    await asyncio.create_task(_interrupts())


async def has_a_task_group_that_interrupts(episode: Episode) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_interrupts())
        group.create_task(asyncio.sleep(30))


async def has_an_anyio_group_that_interrupts(episode: Episode) -> Any:
    async with anyio.create_task_group() as group:
        group.start_soon(_interrupts)
        group.start_soon(anyio.sleep, 30)


async def raises_stop_iteration(episode: Episode) -> Any:
    raise StopIteration("from the workflow")


async def raises_stop_async_iteration(episode: Episode) -> Any:
    raise StopAsyncIteration("from the workflow")


async def says_half_a_character(episode: Episode) -> Any:
    raise ValueError(SURROGATE)


async def has_no_text(episode: Episode) -> Any:
    raise NoTextError


async def exits_as_text(episode: Episode) -> Any:
    raise ExitsAsTextError


async def says_100_megabytes(episode: Episode) -> Any:
    raise ValueError("x" * 100_000_000)


async def raises_a_ring_of_causes(episode: Episode) -> Any:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


async def raises_20_000_at_once(episode: Episode) -> Any:
    raise ExceptionGroup("many", [ValueError(str(number)) for number in range(20_000)])


async def recurses(episode: Episode) -> Any:
    def again(depth: int) -> int:
        return again(depth + 1)

    return again(0)


async def earns_too_much(episode: Episode) -> Any:
    return 1e154


async def earns_what_is_no_float(episode: Episode) -> Any:
    return 10**5000


async def earns_something_complex(episode: Episode) -> Any:
    return np.complex64(1)


async def earns_a_vector(episode: Episode) -> Any:
    return torch.ones(3)


async def earns_half_a_character(episode: Episode) -> Any:
    return SURROGATE


async def earns_what_has_no_text(episode: Episode) -> Any:
    return NoTextError()


async def credits_a_call_too_much(episode: Episode) -> Any:
    reply = await call(episode)
    episode.reward(reply.id, -1e155)


async def logs_nan(episode: Episode) -> Any:
    episode.log(ok=1.0, bad=float("nan"))


async def logs_a_huge_number(episode: Episode) -> Any:
    episode.log(bad=10**5000)


async def logs_half_a_character(episode: Episode) -> Any:
    episode.log(**{SURROGATE: 1.0})


async def logs_a_name_of_a_megabyte(episode: Episode) -> Any:
    episode.log(**{"x" * 2**20: 1.0})


async def returns_a_metric_without_a_name(episode: Episode) -> Any:
    return Reward(1.0, {3: 1.0})  # type: ignore[dict-item]


async def writes_into_the_metrics(episode: Episode) -> Any:
    episode.metrics["bad"] = object()  # type: ignore[index]


async def asks_for_another_episode(episode: Episode) -> Any:
    episode.reward(SURROGATE, 1.0)


async def cannot_close(episode: Episode) -> Any:
    async def close() -> None:
        raise Panic("while closing")

    episode.env("agentrl/Calculator-v0").close = close  # type: ignore[method-assign]
    return 1.0


FAILURES: list[tuple[Workflow, str]] = [
    (raises_cancelled, "the workflow cancelled itself"),
    (raises_cancelled_with_half_a_character, r"half a character: \ud83d"),
    (cancels_its_task, "the workflow cancelled itself"),
    (is_cancelled_by_a_callback, "the workflow cancelled itself"),
    (leaks_a_cancelled_scope, "the workflow cancelled itself"),
    (leaves_scopes_in_the_wrong_order, "cancel scope"),
    (cancels_within_a_timeout, "the workflow cancelled itself"),
    (turns_a_timeout_into_a_cancellation, "the workflow cancelled itself"),
    (panics, "Panic: called `Option::unwrap()` on a `None` value"),
    (raises_generator_exit, "GeneratorExit: from the workflow"),
    (raises_keyboard_interrupt, "KeyboardInterrupt: from the workflow"),
    (exits, "SystemExit: from the workflow"),
    (has_a_child_that_interrupts, "KeyboardInterrupt: from a child"),
    (has_a_task_group_that_interrupts, "KeyboardInterrupt: from a child"),
    (has_an_anyio_group_that_interrupts, "KeyboardInterrupt: from a child"),
    (raises_stop_iteration, "StopIteration: from the workflow"),
    (raises_stop_async_iteration, "StopAsyncIteration: from the workflow"),
    (says_half_a_character, r"ValueError: half a character: \ud83d"),
    (has_no_text, "NoTextError: <an exception whose str raises RuntimeError>"),
    (exits_as_text, "ExitsAsTextError: <an exception whose str raises KeyboardInterrupt>"),
    (says_100_megabytes, "characters left out"),
    (raises_a_ring_of_causes, "ValueError: one"),
    (raises_20_000_at_once, "of 20000 are left out"),
    (recurses, "RecursionError: maximum recursion depth exceeded"),
    (earns_too_much, "the reward is 1e+154; it must be a finite number from -1e+06 to 1e+06"),
    (earns_what_is_no_float, "the reward is <a int whose repr raises ValueError>, which does not convert to a float"),
    (earns_something_complex, "of type complex64; return a number or a Reward"),
    (earns_a_vector, "of type Tensor; return a number or a Reward"),
    (earns_half_a_character, "of type str; return a number or a Reward"),
    (earns_what_has_no_text, "<a NoTextError whose repr raises RuntimeError>"),
    (credits_a_call_too_much, "is -1e+155; it must be a finite number"),
    (logs_nan, "the metric 'bad' is nan"),
    (logs_a_huge_number, "the metric 'bad' is <a int whose repr raises ValueError>"),
    (logs_half_a_character, r"'half a character: \ud83d' is no name of a metric"),
    (logs_a_name_of_a_megabyte, "is no name of a metric"),
    (returns_a_metric_without_a_name, "3 is no name of a metric"),
    (writes_into_the_metrics, "does not support item assignment"),
    (asks_for_another_episode, "no model call of this episode has the id"),
    (cannot_close, "Panic: while closing"),
]


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
    assert result.controller.progress.abandoned == 0


async def calls_back_to_exit(episode: Episode) -> Any:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.02)
    return 0.25


async def forgets_a_child_that_interrupts(episode: Episode) -> Any:
    episode.child = asyncio.create_task(_interrupts())  # type: ignore[attr-defined]
    await asyncio.sleep(0.02)
    return 0.25


async def cancels_itself_at_the_end(episode: Episode) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
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


@pytest.mark.parametrize(
    "odd",
    [
        calls_back_to_exit,
        forgets_a_child_that_interrupts,
        cancels_itself_at_the_end,
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

    episode.env("agentrl/Calculator-v0").close = close  # type: ignore[method-assign]
    return 1.0


@pytest.mark.parametrize("hostile", [swallows, swallows_in_finally, swallows_in_a_scope, closes_without_end])
def test_what_does_not_end_is_abandoned_and_named(
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
        assert "abandoned" in (attempt.error or "")
    assert result.controller.progress.abandoned == 2
    said = [record.getMessage() for record in caplog.records if "abandoned:" in record.getMessage()]
    assert len(said) == 1, "a place is named once"
    assert f"{__file__}:{line} in swallows" in said[0]


def test_an_abandoned_workflow_gets_no_more_replies(nano_format: ChatFormat, tmp_path: Path) -> None:
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
    assert result.controller.progress.abandoned == GROUP_SIZE
    assert set(refusals) == {409}


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
    assert result.controller.progress.abandoned == 0
    assert {"rollout.episode_timeout_s = 0.5 s" in (attempt.error or "") for attempt in result.failed} == {True}


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


@pytest.mark.parametrize("value", [1e6, -1e6, True, 3, np.float64(0.5), np.bool_(True), torch.tensor(2)])
def test_numbers_of_all_kinds_are_rewards(value: Any) -> None:
    earned = Reward.of(value).value
    assert type(earned) is float
    assert earned == float(value)


@pytest.mark.parametrize("value", [1.001e6, float("inf"), None, "1", b"1", 1j, [1.0], np.ones(1), np.str_("1")])
def test_all_else_is_refused(value: Any) -> None:
    with pytest.raises(BadRewardError):
        Reward.of(value)
