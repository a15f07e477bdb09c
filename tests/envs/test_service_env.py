"""Environments with a user: who speaks when, whose tools are whose, and what is scored at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

from agentrl.envs import AsyncToolEnv, ServiceEnv, tool, user_tool
from agentrl.envs.service_env import Call
from agentrl.errors import EpisodeError

pytestmark = pytest.mark.anyio


class Library(ServiceEnv):
    rules = "You are a clerk."
    max_turns = 6

    @tool
    def extend(self, book: str, days: int = 7) -> str:
        """Extend a loan."""
        self.database["loans"][book] += days
        return "done"

    @tool
    @user_tool
    def today(self) -> int:
        """Say which day it is."""
        return int(self.database["day"])

    @user_tool
    def shelf(self) -> list[str]:
        """Say what is on the shelf at home."""
        return [*self.database["loans"]]


TASK: dict[str, Any] = {
    "instruction": "Have the loan of Emma extended.",
    "database": {"day": 3, "loans": {"Emma": 10, "Ulysses": 4}},
    "actions": [{"tool": "extend", "arguments": {"book": "Emma"}}],
    "outputs": [17],
    "user": ["My book, please.", "Emma."],
}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def reward_of(*messages: dict[str, Any], task: dict[str, Any] | None = None) -> tuple[float, dict[str, Any]]:
    env = AsyncToolEnv(Library())
    await env.reset(options=task or TASK)
    for message in messages:
        await env.step(message)
    assert env.done
    return env.total_reward, env.info


async def test_messages_go_to_the_user_and_calls_to_the_database() -> None:
    env = AsyncToolEnv(Library())
    await env.reset(options=TASK)
    assert env.messages == [
        {"role": "system", "content": "You are a clerk."},
        {"role": "user", "content": "My book, please."},
    ]
    await env.step(said("Which one?"))
    assert (env.messages[-1], env.done) == ({"role": "user", "content": "Emma."}, False)
    await env.step(called("extend", book="Emma"))
    assert env.messages[-1]["content"] == "done"
    await env.step(said("It is yours until day 17."))
    assert (env.done, env.truncated, env.total_reward) == (True, False, 1.0)
    assert TASK["database"]["loans"] == {"Emma": 10, "Ulysses": 4}, "the task stays as it was"


@pytest.mark.parametrize(
    ("calls", "last", "right", "told"),
    [
        ([called("extend", book="Emma")], "Until day 17.", 1.0, 1.0),
        ([called("extend", book="Emma", days=3), called("extend", book="Emma", days=4)], "17!", 1.0, 1.0),
        ([called("extend", book="Emma")], "Until day 170.", 1.0, 0.0),
        ([called("extend", book="Emma"), called("extend", book="Ulysses")], "17", 0.0, 1.0),
        ([called("extend", book="Ulysses")], "17", 0.0, 1.0),
        ([], "17", 0.0, 1.0),
    ],
)
async def test_the_database_at_the_end_and_what_was_told_decide(
    calls: list[dict[str, Any]], last: str, right: float, told: float
) -> None:
    reward, info = await reward_of(said("Which?"), *calls, said(last))
    assert (reward, info["database_right"], info["outputs_told"]) == (right * told, right, told)


@pytest.mark.parametrize(
    ("output", "text", "told"),
    [
        (9.5, "You get 9.50 back.", True),
        (9.5, "You get $9.5.", True),
        (1234.5, "That makes 1,234.50 in all.", True),
        (9.5, "You get 19.50 or 9.55 back.", False),
        ("Oak Street", "To OAK street, then.", True),
        ("Oak Street", "To Elm Street, then.", False),
    ],
)
async def test_an_output_is_a_number_or_words(output: Any, text: str, told: bool) -> None:
    reward, _ = await reward_of(
        called("extend", book="Emma"), said("?"), said(text), task={**TASK, "outputs": [output]}
    )
    assert reward == float(told)


async def test_a_conversation_that_is_cut_earns_nothing() -> None:
    env = AsyncToolEnv(Library())
    await env.reset(options={**TASK, "user": ["Hello."] * 100})
    await env.step(called("extend", book="Emma"))
    while not env.done:
        await env.step(said("17"))
    assert (env.truncated, env.total_reward) == (True, 0.0)


async def test_each_has_its_own_tools() -> None:
    seen: list[Any] = []

    class Curious:
        async def begin(self, instruction: str, tools: Sequence[dict[str, Any]], call: Call) -> str:
            seen.append([schema["function"]["name"] for schema in tools])
            for function in (
                {"name": "shelf", "arguments": "{}"},
                {"name": "extend", "arguments": '{"book": "Emma"}'},
                {"name": "today", "arguments": '{"why": 1}'},
            ):
                seen.append(await call(function))
            return "Hello."

        async def answer(self, said: str) -> str | None:
            return None

    env = AsyncToolEnv(Library())
    await env.reset(options={**TASK, "user": Curious()})
    assert seen == [
        ["today", "shelf"],
        '["Emma", "Ulysses"]',
        "error: no tool 'extend'; the tools are today, shelf",
        "error: there is no argument 'why'",
    ]
    assert [schema["function"]["name"] for schema in env.tools] == ["extend", "today"]
    assert env.info["failed_calls"] == 0, "the user's mistakes are not the agent's"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"actions": []}, "lacks"),
        ({"actions": [], "outputs": []}, "an agent that does nothing would earn its reward"),
        ({"actions": [{"tool": "extend", "arguments": {"book": "Dracula"}}]}, "action 0 of the task, 'extend', fails"),
        ({"actions": [{"tool": "burn"}]}, "no tool 'burn'"),
        ({"actions": [{"name": "extend"}]}, r"action 0 of the task has the keys \['name'\]; it is written"),
    ],
)
async def test_a_task_that_makes_no_sense_says_so(change: dict[str, Any], complaint: str) -> None:
    env = AsyncToolEnv(Library())
    task = {**TASK, **change}
    if complaint == "lacks":
        del task["actions"]
    with pytest.raises(EpisodeError, match=complaint):
        await env.reset(options=task)


def test_without_an_event_loop_it_is_an_environment_of_gymnasium() -> None:
    env = gymnasium.make("agentrl/Shop-v0")
    observation, _ = env.reset(seed=3)
    assert [message["role"] for message in observation] == ["system", "user"]
    _, reward, terminated, _, info = env.step([said("Good bye.")])
    assert (reward, terminated, info["database_right"]) == (0.0, True, 0.0)
    env.close()
