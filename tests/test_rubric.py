"""A rubric: weighted functions make a reward, each is a metric, and one that fails is named."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from agentrl.errors import RewardFunctionError, WorkflowError
from agentrl.rubric import Rubric
from agentrl.system.failure_text import describe, failure_line

pytestmark = pytest.mark.anyio


async def correct(episode: Any, answer: str) -> float:
    await anyio.sleep(0)
    return float(answer == episode)


def brief(episode: Any, answer: str) -> bool:
    time.sleep(0.01)  # in a thread
    return len(answer) < 3


async def fails(episode: Any, answer: str) -> float:
    raise KeyError("no such answer")


async def waits(episode: Any, answer: str) -> float:
    await anyio.sleep_forever()
    return 1.0


async def test_the_reward_is_the_weighted_sum_and_every_function_a_metric() -> None:
    reward = await Rubric([correct, brief], weights=[1.0, 0.5])("42", "42")
    assert (reward.value, dict(reward.metrics)) == (1.5, {"correct": 1.0, "brief": 1.0})
    reward = await Rubric([correct, brief])("42", answer="4242")
    assert (reward.value, dict(reward.metrics)) == (0.0, {"correct": 0.0, "brief": 0.0})


async def test_a_weight_of_zero_makes_a_metric_alone() -> None:
    reward = await Rubric([correct, brief], weights=[1, 0])("42", "42")
    assert (reward.value, reward.metrics["brief"]) == (1.0, 1.0)


async def test_functions_wait_at_the_same_time() -> None:
    both = anyio.Event(), anyio.Event()

    async def first(episode: Any, answer: str) -> float:
        both[0].set()
        await both[1].wait()
        return 1.0

    async def second(episode: Any, answer: str) -> float:
        both[1].set()
        await both[0].wait()
        return 1.0

    with anyio.fail_after(40):
        assert (await Rubric([first, second])("", "")).value == 2.0


async def test_one_that_raises_fails_the_episode_with_its_name_and_ends_the_others() -> None:
    told = r"fails failed: KeyError: 'no such.*test_rubric\.py:\d+ in fails\)"
    with anyio.fail_after(40), pytest.raises(RewardFunctionError, match=told) as caught:
        await Rubric([fails, waits])("", "")
    assert isinstance(caught.value.__cause__, KeyError)
    assert failure_line(describe(caught.value)).count("test_rubric.py:") == 1, "the workflow's line is not its"


@pytest.mark.parametrize("returned", [None, "1.0", float("nan"), [1.0]])
async def test_what_is_no_number_fails_the_episode(returned: Any) -> None:
    def odd(episode: Any) -> Any:
        return returned

    with pytest.raises(RewardFunctionError, match=r"the reward function odd failed"):
        await Rubric([odd])(None)


@pytest.mark.parametrize(
    ("functions", "weights", "complaint"),
    [
        ([], None, "needs a reward function"),
        ([correct], [1, 2], "weights has 2 numbers, and the rubric has reward functions"),
        ([correct, correct], None, "two reward functions of a rubric are named 'correct'"),
        ([lambda episode: 1.0], None, "has no name"),
    ],
)
async def test_a_rubric_that_makes_no_sense_is_refused(functions: Any, weights: Any, complaint: str) -> None:
    with pytest.raises(WorkflowError, match=complaint):
        Rubric(functions, weights)


async def test_a_rubric_shows_its_weights_and_functions() -> None:
    assert repr(Rubric([correct, brief], weights=[1, 0.1])) == "Rubric(1 · correct + 0.1 · brief)"
