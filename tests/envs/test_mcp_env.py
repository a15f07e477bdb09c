"""Real MCP servers of the `mcp` package: their tools, their failures, their restarts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import pytest

from agentrl.envs import AsyncToolEnv
from agentrl.errors import EpisodeError, ToolDefinitionError
from agentrl.system.tasks import Resources, open_resources
from tests.loopback import python_server

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = {"command": [sys.executable, str(SERVER), "stdio"]}
TASK = {"prompt": "What is 2 + 3?", "answer": "5"}


@pytest.fixture(scope="module")
def http() -> Iterator[dict[str, Any]]:
    with python_server(SERVER) as port:
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


async def opened(resources: Resources, **settings: Any) -> AsyncToolEnv:
    env = AsyncToolEnv(lambda: gymnasium.make("agentrl/MCP-v0", max_turns=50, **settings), resources=resources)
    await env.reset(options=TASK)
    return env


async def said(env: AsyncToolEnv, name: str, **arguments: Any) -> str:
    function = {"name": name, "arguments": json.dumps(arguments)}
    await env.step({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]})
    content = env.messages[-1]["content"]
    assert isinstance(content, str)
    return content


async def test_over_standard_input_and_output() -> None:
    async with open_resources() as resources:
        env = await opened(resources, **STDIO, tools=["add", "fail"])
        assert env.messages == [{"role": "user", "content": "What is 2 + 3?"}]
        assert [tool["function"]["name"] for tool in env.tools] == ["add", "fail"]
        assert env.tools[0]["function"]["parameters"]["required"] == ["a", "b"]
        assert await said(env, "add", a=2, b=3) == "5"
        assert "Error executing tool add" in await said(env, "add", a="x")
        assert "fail" in await said(env, "fail")
        assert env.failed_calls == 1
        assert await env.step({"role": "assistant", "content": " 5 "}) == 1.0
        await env.close()


async def test_over_http_and_past_the_proxy_of_the_environment(http: dict[str, Any], dead_proxy: None) -> None:
    async with open_resources() as resources:
        env = await opened(resources, **http, headers={"x-key": "1"})
        assert await said(env, "add", a=2, b=3) == "5"
        await env.close()


async def test_each_episode_has_a_server_of_its_own() -> None:
    async with open_resources() as resources:
        envs = [await opened(resources, **STDIO) for _ in range(2)]
        first, second = [await said(env, "process_id") for env in envs]
        assert first != second
        for env in envs:
            await env.close()


async def test_a_server_that_dies_fails_its_episode_with_the_end_of_its_standard_error() -> None:
    async with open_resources() as resources:
        env = await opened(resources, **STDIO)
        with pytest.raises(
            EpisodeError, match=r"was lost in a call of die: Connection closed\..*standard error: .*I die\n"
        ):
            await said(env, "die")
        await env.close()


async def test_so_does_one_that_dies_over_http() -> None:
    with python_server(SERVER) as port:
        async with open_resources() as resources:
            env = await opened(resources, url=f"http://127.0.0.1:{port}/mcp")
            with anyio.fail_after(20), pytest.raises(EpisodeError, match="was lost in a call of die: "):
                await said(env, "die")
            await env.close()


async def test_a_tool_that_hangs_is_given_up_and_its_server_kept() -> None:
    async with open_resources() as resources:
        env = await opened(resources, **STDIO)
        first = await said(env, "process_id")
        env.tool_env.tool_timeout_s = 0.5
        assert await said(env, "hang") == "error: hang took longer than 0.5 s and was given up"
        env.tool_env.tool_timeout_s = 60
        assert await said(env, "process_id") == first
        await env.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"command": ["/nowhere/server"]}, "cannot be reached"),
        ({"command": [sys.executable, "-c", "raise SystemExit(1)"]}, "cannot be reached"),
        (
            {"command": [sys.executable, "-c", "import no_such_package"]},
            r"cannot be reached: .*The end of its standard error: .* \| ModuleNotFoundError: No module named 'no_such_package'$",
        ),
        (
            {"command": ["sh", "-c", "echo the key is missing >&2; exec sleep 60"], "connect_timeout_s": 0.5},
            r"within 0.5 s\. The end of its standard error: the key is missing$",
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be reached"),
    ],
)
async def test_a_server_that_cannot_be_reached_fails_its_episode(settings: dict[str, Any], complaint: str) -> None:
    async with open_resources() as resources:
        with pytest.raises(EpisodeError, match=complaint):
            await opened(resources, **settings)


async def test_nonsense_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="either a command or a url"):
        gymnasium.make("agentrl/MCP-v0")
    async with open_resources() as resources:
        env = AsyncToolEnv(lambda: gymnasium.make("agentrl/MCP-v0", **STDIO), resources=resources)
        with pytest.raises(EpisodeError, match="needs 'prompt' or 'messages'"):
            await env.reset(options={})
    with pytest.raises(EpisodeError, match="lives in an episode"):
        await AsyncToolEnv(lambda: gymnasium.make("agentrl/MCP-v0", **STDIO)).reset(options=TASK)
