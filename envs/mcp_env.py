"""`agentrl/MCP-v0`: the tools of a Model Context Protocol server as an environment's tools.

Needs the extra `mcp`.

env = episode.env("agentrl/MCP-v0", command=["python", "server.py"])                 # a server of its own
env = episode.env("agentrl/MCP-v0", url="http://127.0.0.1:9000/mcp", shared=True)    # one connection for all episodes
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, TextIO

import anyio
from anyio.to_thread import run_sync as in_thread

from agentrl.envs.tool_env import Result, ToolEnv
from agentrl.envs.tools import Tool
from agentrl.errors import EpisodeError, ToolCallError, ToolDefinitionError
from agentrl.system.tasks import Lease, Resources
from agentrl.system.this_process import is_loopback

PROBE_TIMEOUT_S = 5.0
STDERR_TIMEOUT_S = 1.0
"""How long the end of a server's standard error is waited for after its own."""
SHOWN_LINES = 10
SHOWN_LINE_BYTES = 500


@dataclass(frozen=True)
class Server:
    """Where the server is: a command to start, or a URL."""

    command: tuple[str, ...] = ()
    url: str = ""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of the command, beside a few of ours."""
    cwd: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """HTTP headers that go with every request to the URL, such as a key."""

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


@dataclass
class Connection:
    """One server: connected when it is first used, and again with the next use after it was lost. Calls may overlap."""

    server: Server
    resources: Resources
    connect_timeout_s: float
    _client: Lease[Any] | None = None
    _connecting: anyio.Lock = field(default_factory=anyio.Lock)
    _stderr: deque[bytes] = field(default_factory=partial(deque, maxlen=SHOWN_LINES))
    """The last lines of the standard error of a server that was started."""

    async def tools(self) -> list[Any]:
        """Return the tools that it offers.

        Raises:
            EpisodeError: It cannot be reached.
        """
        client = await self._connected()
        with anyio.fail_after(self.connect_timeout_s):
            tools: dict[str, Any] = {}
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                new = {tool.name: tool for tool in page.tools if tool.name not in tools}
                tools |= new
                cursor = page.next_cursor
                if not cursor or not new:  # some servers name the same next page for ever
                    return list(tools.values())

    async def call(self, name: str, **arguments: Any) -> Result:
        """Call a tool.

        Raises:
            ToolCallError: What it says is wrong, and when the server is lost.
        """
        client = await self._connected()
        try:
            done = await client.call_tool(name, arguments)
        except anyio.get_cancelled_exc_class():
            # Given up for its time: a server that answers nobody any more is started again.
            with anyio.CancelScope(shield=True):
                await self._lose_unless_alive(client)
            raise
        except Exception as error:
            with anyio.CancelScope(shield=True):
                lost = await self._lose_unless_alive(client)
            text = str(error) or type(error).__name__
            raise ToolCallError(f"{text} (the server is started again with the next call)" if lost else text) from error
        content = _content(done.content)
        if done.is_error:
            raise ToolCallError(content if isinstance(content, str) else "the tool failed")
        return Result(content)

    async def close(self) -> None:
        """Disconnect."""
        held, self._client = self._client, None
        if held is not None:
            await held.release()

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                self._stderr.clear()
                try:
                    with anyio.fail_after(self.connect_timeout_s):
                        self._client = await self.resources.hold(partial(_open_client, self.server, self._stderr))
                except Exception as error:
                    while isinstance(error, ExceptionGroup):
                        error = error.exceptions[0]
                    late = f"did not answer within {self.connect_timeout_s:g} s"
                    why = late if isinstance(error, TimeoutError) else f"cannot be reached: {error}"
                    lines = " | ".join(line.decode(errors="replace").strip() for line in [*self._stderr])
                    why += f". The end of its standard error: {lines}" if lines else ""
                    raise EpisodeError(f"the MCP server {self.server} {why}") from error
            return self._client.value

    async def _lose_unless_alive(self, client: Any) -> bool:
        """Return whether the server is gone; then the next call connects anew."""
        with anyio.move_on_after(PROBE_TIMEOUT_S):
            try:
                await client.list_tools()
            except Exception:  # noqa: S110 - whatever it is, nobody is there
                pass
            else:
                return False
        if self._client is not None and self._client.value is client:
            await self.close()
        return True


class MCPEnv(ToolEnv):
    """The tools of an MCP server.

    A task is {"prompt": TEXT} or {"messages": [...]}; with "answer", the agent's last message earns 1 when it is the
    same text. A subclass scores otherwise by defining `on_answer`.

    Args:
        command, env, cwd: the server to start, and talk to over its standard input and output.
        url, headers: or the server to talk to by streamable HTTP.
        shared: one connection for all episodes of the run, instead of one each.
        connect_timeout_s: bound of starting or reaching the server.
        tool_timeout_s: bound of one call.
        tools: names of the tools to offer. Default: all.
    """

    refusals = (ToolCallError,)

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        shared: bool = False,
        connect_timeout_s: float = 30.0,
        tool_timeout_s: float = 60.0,
        max_turns: int = 8,
        tools: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if bool(command) == bool(url):
            raise ToolDefinitionError("an MCP environment needs either a command or a url")
        pairs = [tuple(sorted((part or {}).items())) for part in (env, headers)]
        self._server = Server(tuple(command), url, pairs[0], cwd, pairs[1])
        self._shared = shared
        self._connect_timeout_s = connect_timeout_s
        self.tool_timeout_s = tool_timeout_s
        self.max_turns = max_turns
        self._offered = tools
        self._tools: list[Tool] = []
        self._held: Lease[Connection] | None = None
        self.task: dict[str, Any] = {}

    @property
    def toolset(self) -> Sequence[Tool]:
        """The tools that the server offers."""
        return self._tools

    async def on_reset(self, task: dict[str, Any] | None) -> Any:
        """Connect, and open the conversation.

        Raises:
            EpisodeError: The task has neither 'prompt' nor 'messages'.
        """
        self.task = task or {}
        messages = self.task.get("messages") or self.task.get("prompt")
        if not messages:
            raise EpisodeError("a task of an MCP environment needs 'prompt' or 'messages'")
        connection = await self._connection()
        offered = await connection.tools()
        self._tools = [
            Tool(tool.name, tool.description or "", dict(tool.input_schema), partial(connection.call, tool.name))
            for tool in offered
            if self._offered is None or tool.name in self._offered
        ]
        return messages

    def on_answer(self, content: str) -> float:
        """1 when it is the task's answer."""
        return float(content.strip() == str(self.task.get("answer", object())).strip())

    async def aclose(self) -> None:
        """Disconnect, unless the connection is shared."""
        held, self._held = self._held, None
        if held is not None:
            await held.release()

    async def _connection(self) -> Connection:
        if self.resources is None:
            raise EpisodeError("an MCP environment lives in an episode; make it with episode.env(...)")
        await in_thread(_import_mcp)
        open_it = partial(_open_connection, self._server, self.resources, self._connect_timeout_s)
        if self._shared:
            return await self.resources.share(self._server, open_it)
        if self._held is None:
            self._held = await self.resources.hold(open_it)
        return self._held.value


@asynccontextmanager
async def _open_connection(server: Server, resources: Resources, timeout_s: float) -> AsyncIterator[Connection]:
    connection = Connection(server, resources, timeout_s)
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


@asynccontextmanager
async def _open_client(server: Server, stderr: deque[bytes]) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if server.command:
        parameters = StdioServerParameters(
            command=server.command[0], args=list(server.command[1:]), env=dict(server.env) or None, cwd=server.cwd
        )
        async with _read_end(stderr) as errlog, Client(stdio_client(parameters, errlog=errlog), cache=None) as client:
            yield client
    else:
        headers, trust_env = dict(server.headers), not is_loopback(server.url)
        # Making a client reads certificates.
        http = await in_thread(lambda: httpx2.AsyncClient(headers=headers, timeout=None, trust_env=trust_env))
        async with http, Client(streamable_http_client(server.url, http_client=http), cache=None) as client:
            yield client


@asynccontextmanager
async def _read_end(lines: deque[bytes]) -> AsyncIterator[TextIO]:
    """Yield a file, of what is written to which `lines` has the end when the context is left."""
    reading, writing = os.pipe()

    def read() -> None:
        with os.fdopen(reading, "rb") as pipe:
            lines.extend(iter(partial(pipe.readline, SHOWN_LINE_BYTES), b""))

    reader = threading.Thread(target=read, daemon=True, name="standard error of an MCP server")
    reader.start()
    try:
        with os.fdopen(writing, "w") as file:
            yield file
    finally:
        with anyio.CancelScope(shield=True):  # what the server has started may keep its output open
            await in_thread(reader.join, STDERR_TIMEOUT_S)


def _import_mcp() -> None:
    try:
        import_module("mcp.client.streamable_http")
        import_module("jsonschema")  # which mcp else imports with the first result, on the event loop
    except ImportError:
        raise EpisodeError("MCP environments need the package mcp: pip install -e '/path/to/agentrl[mcp]'") from None


def _content(parts: Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return what a tool returned: text if it is nothing else, or the parts of a message."""
    converted: list[dict[str, Any]] = []
    for part in parts:
        match part.type:
            case "text":
                converted.append({"type": "text", "text": part.text})
            case "image":
                url = f"data:{part.mime_type};base64,{part.data}"
                converted.append({"type": "image_url", "image_url": {"url": url}})
            case _:
                converted.append({"type": "text", "text": part.model_dump_json()})
    if all(part["type"] == "text" for part in converted):
        return "\n".join(part["text"] for part in converted)
    return converted
