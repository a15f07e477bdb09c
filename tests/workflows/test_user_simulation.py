"""A second model plays the user: what it is told, what it may do, and what is trained on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import gymnasium
import pytest

from agentrl.envs.shop import shop_task
from agentrl.envs.simulated_user import END, GREETING
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import user_simulation
from tests.envs.test_service_env import TASK as LIBRARY_TASK
from tests.envs.test_service_env import Library
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio
SEED = next(seed for seed in range(1000) if shop_task(seed)["case"] == "damaged")
TASK: dict[str, Any] = {"env": "agentrl/Shop-v0", **shop_task(SEED)}


def is_the_user(request: dict[str, Any]) -> bool:
    return TASK["instruction"] in str(request["messages"][0]["content"])


def play_user(request: dict[str, Any]) -> Any:
    """Say that something is broken; look what it is when asked; hang up when it is settled."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return f"This is what I see: {last['content']}"
    if last["content"] == GREETING:
        return "Something arrived broken."
    return END if "settled" in last["content"] else ToolCall("look_into_parcel", "{}")


def play_agent(request: dict[str, Any]) -> Any:
    """Ask what is broken, do what the rules say, and tell the user."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return "It is settled."
    if "in pieces" not in last["content"]:
        return "What is it?"
    [action] = TASK["actions"]
    return ToolCall(action["tool"], json.dumps(action["arguments"]))


async def outcome_of(task: dict[str, Any], agent: Any, url: str) -> Outcome:
    async with (
        ScriptedModel(agent).serve() as own_url,
        remote_runner(
            user_simulation.run, base_url=url or own_url, api_key="-", model="scripted", timeout_s=60
        ) as runner,
    ):
        return await runner.run(task, 0)


async def test_another_model_plays_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def play(request: dict[str, Any]) -> Any:
        seen.append(request)
        return play_user(request)

    async with ScriptedModel(play).serve() as url:
        named = {"user": {"base_url": url, "model": "a-user"}}
        outcome = await outcome_of({**TASK, **named}, play_agent, "")
        assert (outcome.error, outcome.reward) == (None, 1.0)
        assert outcome.metrics == {
            "turns": 3.0, "failed_turns": 0.0, "truncated": 0.0, "database_right": 1.0, "outputs_told": 1.0
        }  # fmt: skip
        monkeypatch.setenv("AGENTRL_USER_BASE_URL", url)
        monkeypatch.setenv("AGENTRL_USER_MODEL", "a-user")
        assert (await outcome_of(TASK, play_agent, "")).reward == 1.0
    assert all(is_the_user(request) for request in seen)
    assert {schema["function"]["name"] for schema in seen[0]["tools"]} == {"look_into_parcel"}
    assert {request["model"] for request in seen} == {"a-user"}
    assert "Rules" not in str(seen), "the user does not know the agent's rules"


async def test_the_same_model_plays_both_and_each_sees_its_own() -> None:
    def play(request: dict[str, Any]) -> Any:
        return play_user(request) if is_the_user(request) else play_agent(request)

    assert (await outcome_of(TASK, play, "")).reward == 1.0


async def test_an_agent_that_settles_nothing_earns_nothing() -> None:
    def play(request: dict[str, Any]) -> Any:
        return play_user(request) if is_the_user(request) else "It is settled."

    outcome = await outcome_of(TASK, play, "")
    assert (outcome.error, outcome.reward) == (None, 0.0)


async def test_lines_may_play_the_user() -> None:
    def play(request: dict[str, Any]) -> Any:
        assert not is_the_user(request)
        return play_agent(request)

    task = {**TASK, "user": ["Something arrived broken.", "All is in pieces."]}
    assert (await outcome_of(task, play, "")).reward == 1.0


@pytest.mark.parametrize(
    ("user", "complaint"),
    [
        ({"model": "a-user"}, "base_url = None and model = 'a-user'; name both"),
        ({}, "ends the conversation before it has said anything"),
    ],
)
async def test_what_cannot_be_a_user_says_so(user: dict[str, Any], complaint: str) -> None:
    outcome = await outcome_of({**TASK, "user": user}, lambda _: END, "")
    assert (outcome.status, complaint in (outcome.error or "")) == ("failed", True)


async def test_the_user_is_recorded_and_not_trained_on(nano_format: ChatFormat) -> None:
    if "tests/Library-v0" not in gymnasium.registry:
        gymnasium.register("tests/Library-v0", entry_point="tests.envs.test_service_env:Library")
    task = {"env": "tests/Library-v0", **{key: value for key, value in LIBRARY_TASK.items() if key != "user"}}
    async with (
        open_proxy(ScriptedEngine(), nano_format, model="nano") as proxy,
        local_runner(user_simulation.run, proxy, timeout_s=60, defaults=SamplingDefaults(max_tokens=8)) as runner,
    ):
        outcome = await runner.run(task, 0)
    assert (outcome.error, outcome.reward) == (None, 0.0)
    turns = Counter((turn.role, turn.trained) for turn in outcome.record.turns)
    assert turns == {("", True): Library.max_turns, ("user", False): Library.max_turns + 1}
