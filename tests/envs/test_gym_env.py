"""Gymnasium's own environments, played through the tool `act`."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from agentrl.envs import AsyncToolEnv, GymEnv
from agentrl.errors import ToolDefinitionError

pytestmark = pytest.mark.anyio


def act(action: Any) -> dict[str, Any]:
    function = {"name": "act", "arguments": json.dumps({"action": action})}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


async def opened(env: Any, **reset: Any) -> AsyncToolEnv:
    face = AsyncToolEnv(env)
    await face.reset(**reset)
    return face


def enum(env: AsyncToolEnv) -> list[str]:
    actions: list[str] = env.tools[0]["function"]["parameters"]["properties"]["action"]["enum"]
    return actions


def test_names_of_actions_are_as_many_as_these() -> None:
    with pytest.raises(ToolDefinitionError, match="name each action of Discrete\\(4\\) once"):
        GymEnv("FrozenLake-v1", action_names=["left", "right"])


async def test_a_reset_without_a_seed_is_refused_with_what_to_write() -> None:
    class Unseeded(Everything):
        def reset(self) -> Any:  # type: ignore[override]
            return 0, {}

    with pytest.raises(ToolDefinitionError, match=r"^Unseeded.reset: .*'seed'; write `def reset\(self, \*, seed=None"):
        await opened(Unseeded)


async def test_frozen_lake_is_crossed() -> None:
    env = await opened(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False))
    assert "Frozen lake involves crossing" in env.messages[0]["content"]
    assert "## Arguments" not in env.messages[0]["content"]
    assert enum(env) == ["left", "down", "right", "up"]
    for action in ("down", "down", "right", "right", "down"):
        assert await env.step(act(action)) == 0.0
        assert not env.done
    assert env.messages[-1]["content"] == "14"
    assert await env.step(act("right")) == 1.0
    assert (env.done, env.truncated, env.total_reward) == (True, False, 1.0)


async def test_falling_into_a_hole_ends_the_episode_with_nothing() -> None:
    env = await opened(lambda: GymEnv("FrozenLake-v1", make={"is_slippery": False}, instructions="Go."))
    assert env.messages == [{"role": "user", "content": "Go.\n\n0"}]
    await env.step(act("right"))
    await env.step(act("down"))
    assert (env.done, env.total_reward) == (True, 0.0)


async def test_taxi_and_blackjack_have_their_names_and_their_rewards() -> None:
    taxi = await opened(lambda: gymnasium.make("Taxi-v4"), seed=1)
    assert enum(taxi)[-2:] == ["pick up", "drop off"]
    assert await taxi.step(act("drop off")) == -10.0
    blackjack = await opened(lambda: gymnasium.make("Blackjack-v1"), seed=1)
    cards = json.loads(blackjack.messages[0]["content"].rpartition("\n")[2])
    assert len(cards) == 3
    assert await blackjack.step(act("stick")) in (-1.0, 0.0, 1.0)
    assert blackjack.done


async def test_the_seed_decides_the_start() -> None:
    starts = [(await opened(lambda: gymnasium.make("Taxi-v4"), seed=seed)).messages for seed in (1, 1, 2)]
    assert starts[0] == starts[1] != starts[2]


async def test_cart_pole_balances_until_its_time_limit() -> None:
    env = await opened(lambda: GymEnv("CartPole-v1", make={"max_episode_steps": 30}, max_turns=100), seed=3)
    observation = json.loads(env.messages[0]["content"].rpartition("\n")[2])
    while not env.done:
        _, _, angle, speed = observation
        await env.step(act("right" if angle + 0.3 * speed > 0 else "left"))
        observation = json.loads(env.messages[-1]["content"])
    assert (env.total_reward, env.truncated) == (30.0, True)


async def test_what_is_rendered_is_seen() -> None:
    text = await opened(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi"))
    assert text.messages[0]["content"].endswith("[S]FFF\nFHFH\nFFFH\nHFFG")
    await text.step(act("down"))
    assert text.messages[-1]["content"].endswith("SFFF\n[F]HFH\nFFFH\nHFFG")
    drawn = await opened(lambda: GymEnv("CartPole-v1", make={"render_mode": "rgb_array"}, instructions=""))
    await drawn.step(act("left"))
    for content in (drawn.messages[0]["content"], drawn.messages[-1]["content"]):
        (part,) = content
        data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
        assert Image.open(io.BytesIO(data)).size == (600, 400)
    await drawn.close()


class Everything(gymnasium.Env[Any, Any]):
    """Composite spaces, and a picture as its observation."""

    action_space = spaces.Dict(
        {"where": spaces.Box(-1, 1, (2,), np.float32), "how": spaces.MultiDiscrete([3, 2]), "say": spaces.Text(8)}
    )
    observation_space = spaces.Box(0, 255, (8, 9, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((8, 9, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, Any, dict[str, Any]]:
        assert self.action_space.contains(action)
        assert not action["where"].any()
        return np.full((8, 9, 3), 255, np.uint8), 0.5, False, np.bool_(action["say"] == "stop"), {"light": 1}


async def test_composite_actions_and_pictures() -> None:
    env = await opened(lambda: GymEnv(Everything(), instructions="Look."))
    assert [part["type"] for part in env.messages[0]["content"]] == ["text", "image_url"]
    assert await env.step(act({"where": [0, 0], "how": [2, 1], "say": "hello"})) == 0.5
    assert env.info["light"] == 1.0
    await env.step(act({"where": [0, 3], "how": [2, 1], "say": "hello"}))
    assert env.messages[-1]["content"].endswith("'action.where.1': input should be less than or equal to 1, not 3")
    await env.step(act({"where": [0, 0], "how": [0, 0], "say": "stop"}))
    assert (env.done, env.truncated) == (True, True)


async def test_a_reply_without_an_action_is_reminded_and_bounded() -> None:
    env = await opened(lambda: GymEnv("FrozenLake-v1", max_turns=2))
    await env.step({"role": "assistant", "content": "I go down."})
    assert env.messages[-1] == {"role": "user", "content": "Call the tool act to take an action."}
    assert (env.failed_calls, env.done) == (1, False)
    function = {"name": "act", "arguments": '{"move": "down"}'}
    await env.step({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]})
    assert env.messages[-1]["content"] == "error: the field 'action' is missing; there is no field 'move'; leave it out"
    assert (env.done, env.truncated) == (True, True)
