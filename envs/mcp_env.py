"""`agentrl/MCP-v0`: the tools of a Model Context Protocol server as an environment's tools.

Needs the extra `mcp`.

env = episode.env("agentrl/MCP-v0", command=["python", "server.py"])      # a server of its own
env = episode.env("agentrl/MCP-v0", url="http://127.0.0.1:9000/mcp")      # one that runs already
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any

import anyio
from anyio.to_thread import run_sync as in_thread

from agentrl.envs.connected_env import ConnectedEnv
from agentrl.envs.tool_env import Result
from agentrl.envs.tools import Tool
from agentrl.errors import EpisodeError, ToolCallError, ToolDefinitionError
from agentrl.record.end_reason import only_error
from agentrl.system.imports import check_extra
from agentrl.system.this_process import is_loopback

SHOWN_BYTES = 1_000
"""How much of the end of a server's standard error a failure shows."""


class MCPEnv(ConnectedEnv):
    """The tools of an MCP server.

    A task is {"prompt": TEXT} or {"messages": [...]}; with "answer", the agent's last message earns 1 when it is the
    same text. A subclass scores otherwise by defining `on_answer`. A server that cannot be reached, or dies, fails the episode.

    Args:
        command, env, cwd: the server to start for the episode, and talk to over its standard input and output.
        url, headers: or the server to talk to by streamable HTTP.
        connect_timeout_s: bound of starting or reaching the server.
        tool_timeout_s: bound of one call.
        tools: names of the tools to offer. Default: all.
    """

    _stderr = ""
    """The end of the standard error of a server that has ended."""

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 30.0,
        tool_timeout_s: float = 60.0,
        max_turns: int = 8,
        tools: Sequence[str] | None = None,
    ) -> None:
        check_extra("mcp", "agentrl/MCP-v0")
        # Here, in a thread: mcp would import the latter with the first result, on the event loop.
        import_module("mcp.client.streamable_http")
        import_module("jsonschema")
        if bool(command) == bool(url):
            raise ToolDefinitionError("an MCP environment needs either a command or a url")
        self._command, self._env, self._cwd = list(command), dict(env or {}), cwd
        self._url, self._headers = url, dict(headers or {})
        self._connect_timeout_s = connect_timeout_s
        self.tool_timeout_s = tool_timeout_s
        self.max_turns = max_turns
        self._offered = tools

    async def on_reset(self, task: dict[str, Any] | None) -> Any:
        """Connect, and open the conversation.

        Raises:
            EpisodeError: The task has neither 'prompt' nor 'messages', or the server cannot be reached.
        """
        self.task = task or {}
        messages = self.task.get("messages") or self.task.get("prompt")
        if not messages:
            raise EpisodeError("a task of an MCP environment needs 'prompt' or 'messages'")
        try:
            with anyio.fail_after(self._connect_timeout_s):
                self.toolset = await self._list_tools(await self.connection())
        except TimeoutError as error:
            raise await self._failure(f"did not answer within {self._connect_timeout_s:g} s") from error
        except Exception as error:
            raise await self._failure(f"cannot be reached: {only_error(error)}") from error
        return messages

    def on_answer(self, content: str) -> float:
        """Return 1 when it is the task's answer, and else 0."""
        return float(content.strip() == str(self.task.get("answer", object())).strip())

    async def _list_tools(self, client: Any) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [
                Tool(tool.name, tool.description or "", dict(tool.input_schema), partial(self._call_tool, tool.name))
                for tool in page.tools
                if self._offered is None or tool.name in self._offered
            ]
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def _call_tool(self, tool: str, /, **arguments: Any) -> Result:
        """Call a tool.

        Raises:
            ToolCallError: The server says that the call is wrong.
            EpisodeError: The server is lost.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            done = await (await self.connection()).call_tool(tool, arguments)
        except Exception as error:
            if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
                raise ToolCallError(str(error)) from error
            raise await self._failure(f"was lost in a call of {tool}: {only_error(error)}") from error
        content = _content(done.content)
        if done.is_error:
            raise ToolCallError(content if isinstance(content, str) else "the tool failed")
        return Result(content)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Yield a client of the server, which is started where it is one of the environment's own."""
        import httpx2
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        async with AsyncExitStack() as stack:
            if self._url:
                make_http = partial(
                    httpx2.AsyncClient, headers=self._headers, timeout=None, trust_env=not is_loopback(self._url)
                )
                http = await stack.enter_async_context(await in_thread(make_http))  # it reads certificates
                transport = streamable_http_client(self._url, http_client=http)
            else:
                stderr = stack.enter_context(await in_thread(tempfile.TemporaryFile, "w+"))
                stack.callback(self._read_end, stderr.fileno())
                command, *args = self._command
                parameters = StdioServerParameters(command=command, args=args, env=self._env, cwd=self._cwd)
                transport = stdio_client(parameters, errlog=stderr)
            yield await stack.enter_async_context(Client(transport, cache=None))

    def _read_end(self, stderr: int) -> None:
        start = max(0, os.fstat(stderr).st_size - SHOWN_BYTES)
        self._stderr = os.pread(stderr, SHOWN_BYTES, start).decode(errors="replace")

    async def _failure(self, what: str) -> EpisodeError:
        """Return the error of a server that cannot be used any more, once it is closed and its standard error read."""
        await self.aclose()
        said = " | ".join(self._stderr.split("\n")).strip(" |")
        end = f". The end of its standard error: {said}" if said else ""
        return EpisodeError(f"the MCP server {self._url or ' '.join(self._command)} {what}{end}")


def _content(parts: Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return what a tool returned: text if it is nothing else, or the parts of a message."""
    converted = [_message_part(part) for part in parts]
    if all(part["type"] == "text" for part in converted):
        return "\n".join(part["text"] for part in converted)
    return converted


def _message_part(part: Any) -> dict[str, Any]:
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}
    return {"type": "text", "text": part.text if part.type == "text" else part.model_dump_json()}
