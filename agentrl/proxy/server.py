"""The proxy: sessions, and the OpenAI API over two doors that lead to the same place.

episode.client ── InProcessTransport ──┐
                                       ├── Proxy.handle ─► ChatCompletions ─► Engine
any other program ── loopback HTTP ────┘
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import httpx2
import pydantic_core
from aiohttp import web

from agentrl.engine.protocol import Engine
from agentrl.errors import EngineError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.chat import ChatCompletions
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.chat_request import parse_request
from agentrl.proxy.session import SamplingDefaults, Session

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
REMEMBERED_CLOSED_SESSIONS = 100_000
"""Keys of ended episodes that are still told apart from unknown ones (409 instead of 401)."""


@dataclass
class Reply:
    """An HTTP reply: `body`, or server-sent events as they come."""

    body: bytes = b""
    status: int = 200
    events: AsyncIterator[bytes] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        kind = "application/json" if self.events is None else "text/event-stream; charset=utf-8"
        return {"Content-Type": kind}


@dataclass
class Proxy:
    """The OpenAI-compatible server in front of an engine. Open it with `open_proxy`."""

    engine: Engine
    chat_format: ChatFormat
    model: str
    _tasks: anyio.abc.TaskGroup
    base_url: str = ""
    """Where other programs reach it: `http://127.0.0.1:PORT/v1`."""
    _sessions: dict[str, Session] = field(default_factory=dict)
    _closed: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._chat = ChatCompletions(self.engine, self.chat_format, self.model)

    def open_session(self, defaults: SamplingDefaults | None = None) -> Session:
        """A session with a key of its own."""
        session = Session(defaults or SamplingDefaults())
        self._sessions[session.key] = session
        return session

    def close_session(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        session.closed = True
        self.engine.end_session(session.key)
        if self._sessions.pop(session.key, None) is not None:
            self._closed[session.key] = None
            if len(self._closed) > REMEMBERED_CLOSED_SESSIONS:
                self._closed.popitem(last=False)

    async def handle(self, method: str, path: str, authorization: str, body: bytes) -> Reply:
        """Answer one HTTP request."""
        try:
            match method, path:
                case "GET", "/health":
                    await self.engine.health()
                    return Reply(b'{"status":"ok"}')
                case "GET", "/v1/models":
                    self._session(authorization)
                    model = {"id": self.model, "object": "model", "created": 0, "owned_by": "agentrl"}
                    return Reply(pydantic_core.to_json({"object": "list", "data": [model]}))
                case "POST", "/v1/chat/completions":
                    session = self._session(authorization)
                    call = self._chat.prepare(session, parse_request(body))
                    if call.request.stream:
                        return Reply(events=self._events(call))
                    return Reply(pydantic_core.to_json(await self._chat.complete(call)))
                case _, "/health" | "/v1/models" | "/v1/chat/completions":
                    raise ApiError(405, f"{method} is not allowed on {path}.")
            raise ApiError(404, f"Unknown path {path}.", code="unknown_url")
        except EngineError as error:
            return _refusal(ApiError(503, str(error), code="engine_error"))
        except ApiError as error:
            return _refusal(error)
        except Exception as error:
            log.exception("%s %s failed", method, path)
            return _refusal(_internal(error))

    def _session(self, authorization: str) -> Session:
        key = authorization.removeprefix("Bearer ").strip()
        session = self._sessions.get(key)
        if session is not None:
            return session
        if key in self._closed:
            raise ApiError(409, "The episode of this key has ended.", code="episode_closed")
        raise ApiError(401, "Incorrect API key provided: it names no running episode.", code="invalid_api_key")

    async def _events(self, call: Any) -> AsyncIterator[bytes]:
        """Server-sent events of a streamed reply. It is made in a task of the proxy, which ends when the reader leaves."""
        send, receive = anyio.create_memory_object_stream[dict[str, Any]](16)
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                async with send:
                    try:
                        await self._chat.stream(call, send.send)
                    except Exception as error:
                        # This task is the proxy's own: what leaves it would end the proxy with all its episodes.
                        log.exception("a streamed reply failed")
                        await send.send(_internal(error).content())

        self._tasks.start_soon(run)
        try:
            async with receive:
                async for chunk in receive:
                    yield b"data: " + pydantic_core.to_json(chunk) + b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            scope.cancel()

    def in_process_transport(self) -> httpx2.AsyncBaseTransport:
        """A transport that hands requests straight to this proxy, for clients in this process."""
        return _InProcessTransport(self)


def _internal(error: Exception) -> ApiError:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return ApiError(500, f"The proxy failed: {type(error).__name__}: {error}", code="internal_error")


def _refusal(error: ApiError) -> Reply:
    return Reply(pydantic_core.to_json(error.content()), error.status)


class _InProcessTransport(httpx2.AsyncBaseTransport):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        authorization = request.headers.get("authorization", "")
        reply = await self._proxy.handle(request.method, request.url.path, authorization, await request.aread())
        if reply.events is None:
            return httpx2.Response(reply.status, headers=reply.headers, content=reply.body)
        return httpx2.Response(reply.status, headers=reply.headers, stream=_EventStream(reply.events))


class _EventStream(httpx2.AsyncByteStream):
    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]


@asynccontextmanager
async def open_proxy(
    engine: Engine, chat_format: ChatFormat, model: str, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Proxy]:
    """Serve `engine` as `model` on `host`:`port` (0: a free one) for the length of the context."""
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(engine, chat_format, model, tasks)

        async def answer(http: web.Request) -> web.StreamResponse:
            body = await http.read()
            reply = await proxy.handle(http.method, http.path, http.headers.get("Authorization", ""), body)
            if reply.events is None:
                return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
            response = web.StreamResponse(status=reply.status, headers=reply.headers)
            await response.prepare(http)
            async for event in reply.events:
                await response.write(event)
            return response

        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            address = runner.addresses[0]
            proxy.base_url = f"http://{host}:{address[1]}/v1"
            yield proxy
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()
            tasks.cancel_scope.cancel()
