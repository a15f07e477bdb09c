"""Workflows that fail in ways that a runner does not expect, each with what its stored failure must say."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import anyio
import numpy as np
import torch

from agentrl import Episode, Reward
from agentrl.rollout.workflow import Workflow
from tests.rollout.hostile_run import call

SURROGATE = "half a character: \ud83d"


class Panic(BaseException):
    """What an extension module written in Rust raises is no Exception."""


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def raises_cancelled(episode: Episode) -> Any:
    raise asyncio.CancelledError


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


async def raises_stop_iteration(episode: Episode) -> Any:
    raise StopIteration("from the workflow")


async def says_half_a_character(episode: Episode) -> Any:
    raise ValueError(SURROGATE)


async def has_no_text(episode: Episode) -> Any:
    raise NoTextError


async def says_100_megabytes(episode: Episode) -> Any:
    raise ValueError("x" * 100_000_000)


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


async def earns_a_reward_with_a_changed_metric(episode: Episode) -> Any:
    reward = Reward(1.0)
    reward.metrics["a"] = object()  # type: ignore[index]
    return reward


async def writes_into_the_metrics(episode: Episode) -> Any:
    episode.metrics["bad"] = object()  # type: ignore[index]


async def asks_for_another_episode(episode: Episode) -> Any:
    episode.reward(SURROGATE, 1.0)


async def cannot_close(episode: Episode) -> Any:
    async def close() -> None:
        raise Panic("while closing")

    episode.env("agentrl/Calculator-v0").close = close
    return 1.0


FAILURES: list[tuple[Workflow, str]] = [
    (raises_cancelled, "the workflow cancelled itself"),
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
    (raises_stop_iteration, "StopIteration: from the workflow"),
    (says_half_a_character, r"ValueError: half a character: \ud83d"),
    (has_no_text, "NoTextError: <exception str() failed>"),
    (says_100_megabytes, "characters left out"),
    (raises_20_000_at_once, "and 19985 more exceptions"),
    (recurses, "RecursionError: maximum recursion depth exceeded"),
    (earns_too_much, "the reward is 1e+154; it must be a finite number from -1e+06 to 1e+06"),
    (earns_what_is_no_float, "the reward is <a int whose repr raises ValueError>, which does not convert to a float"),
    (earns_something_complex, "of type complex64; return a number or a Reward"),
    (earns_a_vector, "of type Tensor; return a number or a Reward"),
    (earns_half_a_character, "of type str; return a number or a Reward"),
    (credits_a_call_too_much, "is -1e+155; it must be a finite number"),
    (logs_nan, "the metric 'bad' is nan"),
    (logs_a_huge_number, "the metric 'bad' is <a int whose repr raises ValueError>"),
    (logs_half_a_character, r"'half a character: \ud83d' is no name of a metric"),
    (logs_a_name_of_a_megabyte, "is no name of a metric"),
    (returns_a_metric_without_a_name, "3 is no name of a metric"),
    (earns_a_reward_with_a_changed_metric, "the metric 'a' is <object object"),
    (writes_into_the_metrics, "does not support item assignment"),
    (asks_for_another_episode, "no model call of this episode has the id"),
    (cannot_close, "Panic: while closing"),
]
