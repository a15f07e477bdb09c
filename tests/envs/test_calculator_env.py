"""The calculator environment: gymnasium's own checker, its tool, its scoring, its async face."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs import AsyncToolEnv, MessageSpace
from agentrl.envs.calculator_env import distinct_tasks, evaluate
from agentrl.errors import ToolCallError

TASK = {"question": "What is 2 + 3?", "answer": "5"}


def calls(*arguments: str, name: str = "calculator") -> dict[str, Any]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


@given(
    st.recursive(
        st.integers(0, 999).map(str),
        lambda e: st.tuples(e, st.sampled_from("+-*"), e).map("({0[0]} {0[1]} {0[2]})".format),
        max_leaves=6,
    )
)
def test_the_calculator_agrees_with_python(expression: str) -> None:
    assert evaluate(expression) == eval(expression)


@pytest.mark.parametrize(
    "expression", ["", "1 +", "__import__('os')", "2 ** 9", "1 / 2", "x", "1.5 + 1", "True", "9" * 300]
)
def test_the_calculator_takes_nothing_else(expression: str) -> None:
    with pytest.raises(ToolCallError, match=r"expression|integers"):
        evaluate(expression)


@pytest.mark.anyio
async def test_an_episode_calls_reads_and_answers() -> None:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/Calculator-v0"))
    await env.reset(seed=1, options=TASK)
    assert env.messages == [{"role": "user", "content": "What is 2 + 3?"}]
    assert await env.step(calls('{"expression": "2 + 3"}', '{"expression": "2 - 3"}')) == 0.0
    assert [m["content"] for m in env.messages if m["role"] == "tool"] == ["5", "-1"]
    assert not env.done
    assert await env.step({"role": "assistant", "content": " 5 "}) == 1.0
    assert env.done
    assert env.total_reward == 1.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (calls("{}", name="abacus"), "no tool 'abacus'"),
        (calls('{"expression": "1 +"}'), "not an arithmetic expression"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_is_wrong(message: dict[str, Any], complaint: str) -> None:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/Calculator-v0"))
    await env.reset(options=TASK)
    await env.step(message)
    assert complaint in env.messages[-1]["content"]
    assert not env.done


@pytest.mark.anyio
async def test_a_wrong_answer_scores_nothing_and_a_random_task_is_seeded() -> None:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/Calculator-v0"))
    await env.reset(options=TASK)
    assert await env.step({"role": "assistant", "content": "2 + 3 = 6"}) == 0.0
    await env.reset(seed=3)
    first = env.messages
    await env.reset(seed=3)
    assert env.messages == first


def test_a_task_without_a_question_is_refused() -> None:
    env = gymnasium.make("agentrl/Calculator-v0")
    with pytest.raises(ValueError, match="needs 'question' and 'answer'"):
        env.reset(options={"prompt": "x"})


@pytest.mark.slow
def test_training_and_held_out_tasks_share_no_expression(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentrl.envs.calculator_env", str(tmp_path), "--train", "300", "--eval", "50"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    parts = {}
    for name, size in (("train", 300), ("eval", 50)):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        parts[name] = {row["question"] for row in rows}
        assert len(parts[name]) == size
    assert not parts["train"] & parts["eval"]
    assert len({t["question"] for t in distinct_tasks(50, seed=2)}) == 50


def test_the_message_space_knows_its_messages() -> None:
    space = MessageSpace(seed=1)
    assert space.contains(space.sample())
    assert not space.contains([{"role": "robot", "content": "x"}])
    assert not space.contains({"role": "user", "content": "x"})
