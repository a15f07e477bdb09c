"""`agentrl/OpenEnv-v0`: an OpenEnv environment server (HTTP and WebSocket) as a tool environment.

Needs the extra `openenv`.

    env = episode.env("agentrl/OpenEnv-v0", base_url="http://127.0.0.1:8000")

Each episode has a session of its own on the server. The action's schema becomes the tool `act`; a server whose actions
are MCP tool calls offers those tools instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import httpx2
from anyio.to_thread import run_sync as in_thread

from agentrl.envs.connected_env import ConnectedEnv
from agentrl.envs.tool_env import Result
from agentrl.envs.tools import Tool
from agentrl.errors import EpisodeError, ToolCallError
from agentrl.system.imports import check_extra
from agentrl.system.this_process import is_loopback

_BESIDE = ("done", "reward", "metadata")
"""Fields of an observation that are not for the model."""


class OpenEnv(ConnectedEnv):
    """One session on an OpenEnv server.

    A task may have "prompt" or "messages", which come before the first observation, and "reset", the arguments of the
    server's reset. A reply without a call gets a reminder.

    Args:
        base_url: where the server is.
        connect_timeout_s, tool_timeout_s: bounds of connecting and of one action.
    """

    def __init__(
        self, *, base_url: str, connect_timeout_s: float = 30.0, tool_timeout_s: float = 60.0, max_turns: int = 50
    ) -> None:
        check_extra("openenv", "agentrl/OpenEnv-v0")
        self._module = import_module("openenv.core.generic_client")
        self._base_url = base_url.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self.tool_timeout_s = tool_timeout_s
        self.max_turns = max_turns

    async def on_reset(self, task: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Connect, and reset.

        Raises:
            EpisodeError: The server cannot be used.
        """
        task = task or {}
        try:
            client = await self.connection()
            begun = await client.reset(**{"seed": int(self.np_random_seed or 0) % 2**31, **task.get("reset", {})})
            self.toolset = await self._offered(client)
        except (OSError, RuntimeError, httpx2.HTTPError) as error:
            raise EpisodeError(f"the OpenEnv server {self._base_url} cannot be used: {error}") from error
        before = task.get("messages") or ([{"role": "user", "content": task["prompt"]}] if "prompt" in task else [])
        return [*before, {"role": "user", "content": _shown(begun.observation)}]

    def on_answer(self, content: str) -> Result:
        """Return a reply without an action."""
        self.info["failed_calls"] += 1
        return Result(f"Call one of the tools: {', '.join(tool.name for tool in self.toolset)}.")

    def connect(self) -> Any:
        """Return a client, which has a session of its own."""
        timeouts = {"connect_timeout_s": self._connect_timeout_s, "message_timeout_s": self.tool_timeout_s}
        return self._module.GenericEnvClient(base_url=self._base_url, **timeouts)

    async def _act(self, **action: Any) -> Result:
        try:
            done = await (await self.connection()).step(action)
        except RuntimeError as error:  # the server's own, of this action
            raise ToolCallError(str(error)) from error
        return Result(_shown(done.observation), done.reward or 0.0, bool(done.done))

    async def _call_tool(self, name: str, **arguments: Any) -> Result:
        return await self._act(type="call_tool", tool_name=name, arguments=arguments)

    async def _offered(self, client: Any) -> list[Tool]:
        action = await in_thread(self._action_schema)
        if "tool_name" in action["properties"]:
            listed = await client.step({"type": "list_tools"})
            return [
                Tool(t["name"], t.get("description", ""), t["input_schema"], partial(self._call_tool, t["name"]))
                for t in listed.observation["tools"]
            ]
        parameters: dict[str, Any] = {
            key: action[key] for key in ("type", "properties", "required", "$defs") if key in action
        }
        parameters["properties"].pop("metadata", None)
        return [Tool("act", action.get("description", "Take an action."), parameters, self._act)]

    def _action_schema(self) -> dict[str, Any]:
        url, trust_env = f"{self._base_url}/schema", not is_loopback(self._base_url)
        response = httpx2.get(url, timeout=self._connect_timeout_s, trust_env=trust_env).raise_for_status()
        return response.json()["action"]  # type: ignore[no-any-return]


def _shown(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: that of its only field, or JSON."""
    fields = {name: value for name, value in observation.items() if name not in _BESIDE and value is not None}
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    return json.dumps(fields)
