"""Test the environment: `python -m pytest`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from environment import Sums
from tasks import make

TASK = {"question": "What is 2 + 3?", "answer": "5"}


def call(expression: str) -> dict[str, Any]:
    """Return what a model says that calls the calculator."""
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def test_an_episode_calls_the_calculator_and_answers() -> None:
    """Play an episode to a right answer."""
    env = Sums()
    messages, _ = env.reset(options=TASK)
    assert messages == [{"role": "user", "content": "What is 2 + 3?"}]
    messages, reward, done, _, _ = env.step([call("2 + 3")])
    assert (messages[0]["content"], reward, done) == ("5", 0.0, False)
    _, reward, done, _, _ = env.step([{"role": "assistant", "content": "5"}])
    assert (reward, done) == (1.0, True)


@pytest.mark.parametrize("expression", ["2 +", "import os"])
def test_a_wrong_call_is_explained(expression: str) -> None:
    """Call the calculator with what it cannot compute."""
    env = Sums()
    env.reset(options=TASK)
    messages, *_ = env.step([call(expression)])
    assert messages[0]["content"].startswith("error: ")


def test_the_tasks_are_the_same_every_time() -> None:
    """Make the tasks twice, and count their questions: a sum that is there twice might be trained on and held out."""
    assert make() == make()
    assert len({task["question"] for task in make()}) == 2000
