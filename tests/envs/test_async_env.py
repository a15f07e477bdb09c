"""An environment is made and closed in threads, and played for as long as the context lasts."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import pytest

from agentrl import Episode
from agentrl.config.trainer import TurnsConfig
from agentrl.envs import AsyncToolEnv, Result, ToolEnv
from agentrl.errors import EpisodeError
from agentrl.proxy import ChatFormat, SamplingDefaults, limits, open_proxy
from agentrl.proxy.errors import ApiError
from agentrl.record.credit import mask_turns
from agentrl.rollout.run_episode import local_runner
from agentrl.store.outcome import Outcome
from tests.components import wait_until
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


class Counted(gymnasium.Env[Any, Any]):
    """Takes as long to make as the test says, and knows how many of it are open."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, made: threading.Event, open_now: list[Any]) -> None:
        made.wait(10)
        self._open = open_now
        open_now.append(self)
        Counted.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def close(self) -> None:
        self._open.remove(self)


@pytest.mark.parametrize("after_s", [0, 0.05])
async def test_an_environment_that_is_there_only_after_its_reset_was_cancelled_is_closed(after_s: float) -> None:
    made, open_now, before = threading.Event(), list[Any](), Counted.made
    asked = threading.Event()

    def make() -> Counted:
        asked.set()
        return Counted(made, open_now)

    env = AsyncToolEnv(make)
    async with anyio.create_task_group() as group:
        group.start_soon(env.reset)
        await wait_until(asked.is_set, 40)
        threading.Timer(after_s, made.set).start()
        await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    await env.close()
    await wait_until(lambda: Counted.made > before and not open_now, 40)


@pytest.mark.parametrize("env", ["FrozenLake-v1", Counted])
async def test_an_argument_that_an_environment_does_not_take_names_the_remedy(env: Any) -> None:
    with pytest.raises(EpisodeError, match=r"unexpected keyword argument 'max_turns'.*env.play\(episode, max_turns="):
        await AsyncToolEnv(env, max_turns=3).reset()


async def test_an_environment_that_was_made_is_played_as_it_is_in_one_episode_at_a_time() -> None:
    made = gymnasium.make("FrozenLake-v1", is_slippery=False)
    env, other = AsyncToolEnv(made), AsyncToolEnv(made)
    await env.reset(seed=1)
    assert env.tools[0]["function"]["name"] == "act"
    with pytest.raises(EpisodeError, match="is played in another episode"):
        await other.reset(seed=1)
    with pytest.raises(EpisodeError, match="max_turns would make an environment"):
        AsyncToolEnv(made, max_turns=3)
    await env.close()
    await other.reset(seed=1)
    await other.close()


async def test_what_an_environment_imports_is_left_out_of_searches_for_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_by_an_environment.py").write_text("THINGS = [[number] for number in range(1000)]")

    def make() -> Talk:
        import_module("imported_by_an_environment")
        return Talk()

    before = gc.get_freeze_count()
    try:
        await AsyncToolEnv(make).reset(options={"opening": 1})
        assert gc.get_freeze_count() >= before + 1000
    finally:
        gc.unfreeze()


class Talk(ToolEnv):
    """Goes on for ever: every message earns something, and is answered with more text."""

    max_turns = 10**6

    def on_reset(self, task: dict[str, Any]) -> str:
        return "1 " * int(task["opening"])

    def on_answer(self, content: str) -> Result:
        return Result("2 " * 20, reward=1.0)


async def talk(episode: Episode) -> float:
    return await episode.env(Talk).play(episode)


async def outcome_of_talk(chat_format: ChatFormat, opening: int) -> Outcome:
    async with (
        open_proxy(ScriptedEngine(), replace(chat_format, context_length=200), "nano") as proxy,
        local_runner(talk, proxy, timeout_s=60, defaults=SamplingDefaults(max_tokens=3)) as runner,
    ):
        return await runner.run({"opening": opening}, 0)


async def test_a_conversation_that_outgrows_the_context_ends_truncated_with_the_reward_so_far(
    nano_format: ChatFormat,
) -> None:
    outcome = await outcome_of_talk(nano_format, opening=1)
    turns = outcome.record.turns
    assert (outcome.reason, outcome.error) == ("finished", None)
    assert outcome.reward == len(turns) > 1
    assert outcome.metrics == {"turns": len(turns), "failed_turns": 0.0, "truncated": 1.0}
    assert [turn.truncated for turn in turns] == [False] * (len(turns) - 1) + [True]
    mask_turns(outcome.record, TurnsConfig(truncated="mask"))
    assert [turn.trained for turn in turns] == [True] * (len(turns) - 1) + [False]


async def test_an_outgrown_context_is_known_by_its_code(
    nano_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ApiError", lambda status, _, **fields: ApiError(status, "It is too long.", **fields))
    outcome = await outcome_of_talk(nano_format, opening=1)
    assert (outcome.reason, outcome.metrics["truncated"]) == ("finished", 1.0)


async def test_an_opening_that_is_longer_than_the_context_is_a_failure(nano_format: ChatFormat) -> None:
    outcome = await outcome_of_talk(nano_format, opening=1000)
    assert not outcome.finished
    assert "context length is 200 tokens" in (outcome.error or "")
