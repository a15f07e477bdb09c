"""A real OpenEnv server, through OpenEnv's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import pytest

from agentrl.envs import AsyncToolEnv
from agentrl.errors import EpisodeError
from agentrl.rollout.run_episode import remote_runner
from agentrl.system.tasks import Resources, open_resources
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import tool_loop
from tests.loopback import python_server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    import_module("openenv.core.generic_client")  # it makes a client of its own of whatever proxies there are by then
    with python_server(Path(__file__).with_name("open_env_server.py")) as port:
        yield f"http://127.0.0.1:{port}"


async def opened(resources: Resources, url: str, seed: int) -> AsyncToolEnv:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/OpenEnv-v0", base_url=url), resources=resources)
    await env.reset(seed=seed, options={"prompt": "Play."})
    return env


async def guess(env: AsyncToolEnv, **arguments: object) -> float:
    function = {"name": "act", "arguments": json.dumps(arguments)}
    return await env.step({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]})


async def test_an_episode_with_the_servers_schema_and_rewards_past_the_proxy_of_the_environment(
    url: str, dead_proxy: None
) -> None:
    async with open_resources() as resources:
        env = await opened(resources, url, seed=41)
        assert [message["content"] for message in env.messages] == ["Play.", "Guess a number from 1 to 100."]
        described = env.tools[0]["function"]
        assert described["description"] == "Guess the number."
        assert described["parameters"]["properties"]["number"]["description"] == "From 1 to 100."
        assert await guess(env, number=50) == pytest.approx(-0.1)
        assert env.messages[-1]["content"] == "lower"
        assert await guess(env, number="many") == 0.0
        assert env.messages[-1]["content"].startswith("error: ")
        assert await guess(env, number=42) == 1.0
        assert (env.done, env.total_reward) == (True, pytest.approx(0.9))
        await env.close()


@pytest.mark.soak
async def test_sessions_do_not_disturb_each_other(url: str) -> None:
    async with open_resources() as resources:
        envs = [await opened(resources, url, seed) for seed in range(5)]
        rewards: dict[int, float] = {}

        async def play(index: int) -> None:
            rewards[index] = await guess(envs[index], number=index + 1)

        async with anyio.create_task_group() as group:
            for index in range(5):
                group.start_soon(play, index)
        assert rewards == dict.fromkeys(range(5), 1.0)
        for env in envs:
            await env.close()


@pytest.mark.soak
async def test_a_task_plays_without_a_workflow_of_ones_own(url: str) -> None:
    def play(request: dict[str, Any]) -> ToolCall:
        return ToolCall("act", '{"number": 50}' if len(request["messages"]) == 2 else '{"number": 42}')

    task = {"env": "agentrl/OpenEnv-v0", "make": {"base_url": url}, "seed": 41, "prompt": "Play."}
    async with (
        ScriptedModel(play).serve() as model_url,
        remote_runner(tool_loop.run, base_url=model_url, api_key="-", model="scripted", timeout_s=60) as runner,
    ):
        outcome = await runner.run(task, 0)
    assert (outcome.error, outcome.reward) == (None, pytest.approx(0.9))


async def test_a_server_that_is_not_there() -> None:
    async with open_resources() as resources:
        with pytest.raises(EpisodeError, match="cannot be used"):
            await opened(resources, "http://127.0.0.1:9", seed=0)
