"""The proxy: sessions, and the model APIs over two doors that lead to the same place.

episode.client ── InProcessTransport ──┐                  chat, completions, responses, messages
                                       ├── Proxy.handle ─────────► Policy ─► Engine
any other program ── loopback HTTP ────┘
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.abc
import httpx2
import pydantic_core
from aiohttp import web
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.protocol import Engine
from agentrl.errors import EngineError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.chat import ChatCompletions
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.completions import Completions
from agentrl.proxy.journal import Journal
from agentrl.proxy.messages import Messages
from agentrl.proxy.policy import Json, Policy, Send
from agentrl.proxy.responses import Responses
from agentrl.proxy.session import SamplingDefaults, Session
from agentrl.proxy.sessions import ProxyLimits, Sessions

log = logging.getLogger(__name__)

COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass
class Reply:
    """An HTTP reply: `body`, or server-sent events as they come."""

    body: bytes = b""
    status: int = 200
    events: AsyncGenerator[bytes, None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        kind = "application/json" if self.events is None else "text/event-stream; charset=utf-8"
        return {"Content-Type": kind}


class Endpoint(Protocol):
    """One API that makes replies. `prepare` answers bad requests with ApiError before any work starts."""

    def prepare(self, session: Session, body: bytes) -> tuple[Any, Any]: ...

    async def complete(self, request: Any, call: Any) -> Json: ...

    async def stream(self, request: Any, call: Any, send: Send) -> None: ...


@dataclass
class Proxy:
    """The model APIs in front of an engine. Open it with `open_proxy`."""

    engine: Engine
    chat_format: ChatFormat
    model: str
    _tasks: anyio.abc.TaskGroup
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    training: bool = False
    """Whether what it records is trained on. Images, which are not, are refused then."""
    url: str = ""
    """Where other programs reach it: `http://127.0.0.1:PORT`."""

    def __post_init__(self) -> None:
        policy = Policy(self.engine, self.chat_format, self.model, training=self.training)
        self._messages = Messages(policy)
        self._endpoints: dict[str, Endpoint] = {
            "/v1/chat/completions": ChatCompletions(policy),
            "/v1/completions": Completions(policy),
            "/v1/responses": Responses(policy),
            "/v1/messages": self._messages,
        }
        self.sessions = Sessions(self.limits, lambda session: self.engine.end_session(session.key))

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's clients. Anthropic's take `url`."""
        return f"{self.url}/v1"

    def open_session(self, defaults: SamplingDefaults | None = None, journal: Journal | None = None) -> Session:
        """A session with a key of its own, whose calls are kept in `journal`. Raises TooManySessionsError."""
        return self.sessions.open(defaults, journal)

    def close_session(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        self.sessions.close(session)

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one HTTP request."""
        try:
            if len(body) > self.limits.max_request_bytes:
                raise too_large(self.limits)
            return await self._answer(method, path, headers, body)
        except EngineError as error:
            return refusal(ApiError(503, str(error), code="engine_error"), path)
        except ApiError as error:
            return refusal(error, path)
        except Exception as error:
            log.exception("%s %s failed", method, path)
            return refusal(_internal(error), path)

    async def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ").strip()
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "agentrl"}
        known = {"/health", "/v1/models", f"/v1/models/{self.model}", COUNT_TOKENS, *self._endpoints}
        match method, path:
            case "GET", "/health":
                await self.engine.health()
                return Reply(b'{"status":"ok"}')
            case "GET", "/v1/models":
                self.sessions.find(key)
                return _json({"object": "list", "data": [model]})
            case "GET", _ if path == f"/v1/models/{self.model}":
                self.sessions.find(key)
                return _json(model)
            case "POST", _ if path == COUNT_TOKENS:
                return _json(self._messages.count(self.sessions.find(key), body))
            case "POST", _ if path in self._endpoints:
                return await self._reply(path, self.sessions.find(key), body)
        if path in known:
            raise ApiError(405, f"{method} is not allowed on {path}.")
        raise ApiError(404, f"Unknown path {path}.", code="unknown_url")

    async def _reply(self, path: str, session: Session, body: bytes) -> Reply:
        endpoint = self._endpoints[path]
        if self.chat_format.takes_images and b"image" in body:
            request, call = await in_thread(endpoint.prepare, session, body)  # images take a while to cut
        else:
            request, call = endpoint.prepare(session, body)
        if request.stream:
            return Reply(events=self._events(path, session, lambda send: endpoint.stream(request, call, send)))
        with _busy(session):
            return _json(await endpoint.complete(request, call))

    async def _events(
        self, path: str, session: Session, stream: Callable[[Send], Awaitable[None]]
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a streamed reply. It is made in a task of the proxy, which ends when the reader leaves."""
        send, receive = anyio.create_memory_object_stream[Json](16)
        scope = anyio.CancelScope()
        named = path in ("/v1/responses", "/v1/messages")

        async def run() -> None:
            with scope, _busy(session):
                async with send:
                    try:
                        await stream(send.send)
                    except Exception as error:
                        # This task is the proxy's own: what leaves it would end the proxy with all its episodes.
                        log.exception("a streamed reply failed")
                        await send.send(_error_json(_internal(error), path))

        self._tasks.start_soon(run)
        try:
            async with receive:
                async for event in receive:
                    name = f"event: {event['type']}\n".encode() if named and "type" in event else b""
                    yield name + b"data: " + pydantic_core.to_json(event) + b"\n\n"
            if not named:
                yield b"data: [DONE]\n\n"
        finally:
            scope.cancel()

    def in_process_transport(self) -> httpx2.AsyncBaseTransport:
        """A transport that hands requests straight to this proxy, for clients in this process."""
        return _InProcessTransport(self)


class _busy:  # noqa: N801 - a context manager, used like a function
    """Keeps a session from being closed as idle."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.busy += 1

    def __exit__(self, *_: object) -> None:
        self._session.busy -= 1
        self._session.last_used = time.monotonic()


def too_large(limits: ProxyLimits) -> ApiError:
    """The refusal of a body beyond the limit."""
    message = f"The request is larger than {limits.max_request_bytes} bytes (proxy.max_request_bytes)."
    return ApiError(413, message, code="request_too_large")


def refusal(error: ApiError, path: str) -> Reply:
    """The reply that says why there is none, in the words of the API of `path`."""
    return Reply(pydantic_core.to_json(_error_json(error, path)), error.status)


def _error_json(error: ApiError, path: str) -> Json:
    return error.anthropic_json() if path.startswith("/v1/messages") else error.openai_json()


def _internal(error: Exception) -> ApiError:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return ApiError(500, f"The proxy failed: {type(error).__name__}: {error}", code="internal_error")


def _json(content: Json) -> Reply:
    return Reply(pydantic_core.to_json(content))


class _InProcessTransport(httpx2.AsyncBaseTransport):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._proxy.handle(request.method, request.url.path, request.headers, await request.aread())
        if reply.events is None:
            return httpx2.Response(reply.status, headers=reply.headers, content=reply.body)
        return httpx2.Response(reply.status, headers=reply.headers, stream=_EventStream(reply.events))


class _EventStream(httpx2.AsyncByteStream):
    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        await self._events.aclose()


Handle = Callable[[str, str, Mapping[str, str], bytes], Awaitable[Reply]]


@asynccontextmanager
async def open_proxy(
    engine: Engine,
    chat_format: ChatFormat,
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: ProxyLimits | None = None,
    training: bool = False,
    around: Callable[[Proxy], Handle] | None = None,
) -> AsyncIterator[Proxy]:
    """Serve `engine` as `model` on `host`:`port` (0: a free one) for the length of the context.

    With `training` what it records is to be trained on, and images, which are not yet, are refused. `around` may answer more paths over HTTP than `Proxy.handle`, which it is expected to call for the rest.
    """
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(engine, chat_format, model, tasks, limits or ProxyLimits(), training)
        handle = proxy.handle if around is None else around(proxy)
        app = web.Application(client_max_size=proxy.limits.max_request_bytes)

        async def answer(http: web.Request) -> web.StreamResponse:
            return await _serve(proxy, handle, http)

        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1, access_log=None)
        await runner.setup()
        tasks.start_soon(proxy.sessions.close_idle)
        try:
            await web.TCPSite(runner, host, port).start()
            shown = host.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - all interfaces: this machine is reached so
            proxy.url = f"http://{shown}:{runner.addresses[0][1]}"
            yield proxy
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()
            tasks.cancel_scope.cancel()


async def _serve(proxy: Proxy, handle: Handle, http: web.Request) -> web.StreamResponse:
    try:
        body = await http.read()
    except web.HTTPRequestEntityTooLarge:
        reply = refusal(too_large(proxy.limits), http.path)
    else:
        reply = await handle(http.method, http.path, http.headers, body)
    if reply.events is None:
        return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    async with aclosing(reply.events) as events:
        await response.prepare(http)
        async for event in events:
            with anyio.move_on_after(proxy.limits.write_timeout_s) as bound:
                await response.write(event)
            if bound.cancelled_caught:
                log.warning("a client read nothing of its reply for %g s", proxy.limits.write_timeout_s)
                if http.transport is not None:
                    http.transport.abort()
                break
    return response
