"""The proxy: sessions, and the model APIs over two doors that lead to the same place.

episode.client ── InProcessTransport ──┐                  chat, completions, responses, messages, generateContent
                                       ├── Proxy.handle ─────────► CompletionService ─► Engine
any other program ── loopback HTTP ────┘
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.abc
import httpx2

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine
from agentrl.proxy.answer import Answer, Framing, Writer
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.bounds import check_body
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.completion import Json, recall, repeat
from agentrl.proxy.completion_service import CompletionService, run_sized
from agentrl.proxy.dialects import chat_completions, completions, gemini, messages, responses
from agentrl.proxy.headers import cors_headers, is_retry, preflight_headers, rate_limit_headers, request_key
from agentrl.proxy.http_response import Response, json_response, refusals
from agentrl.proxy.ignored import Ignored
from agentrl.proxy.model_names import ModelNames, model_list, one_model
from agentrl.proxy.session import SamplingDefaults, Session, SessionRole
from agentrl.proxy.sessions import Sessions
from agentrl.record.recorded_choice import CallLog
from agentrl.system import traces

T = TypeVar("T")
Body = bytes | Callable[[], Awaitable[bytes]]
"""A request's body, or how to receive it. Raises ApiError."""

COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
RESPONSES = "/v1/responses/"
Read = Callable[[CompletionService, SessionRole, bytes], Writer]
"""Checks a request, before any work starts. Raises ApiError."""
Count = Callable[[CompletionService, SessionRole, bytes], Json]
READERS: dict[str, Read] = {
    "/v1/chat/completions": chat_completions.read,
    "/v1/completions": completions.read,
    "/v1/responses": responses.read,
    "/v1/messages": messages.read,
}


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
    refuse_altered: bool = False
    """Whether roles that are trained on may not ask for another distribution than the policy's own."""
    adapters: tuple[str, ...] = ()
    """The roles that have LoRA adapters of their own, if some have: others are refused then."""
    url: str = ""
    """Where other programs reach it: `http://127.0.0.1:PORT`."""

    def __post_init__(self) -> None:
        self.names = ModelNames(self.model, self.limits)
        self._threads = anyio.CapacityLimiter(self.limits.threads)
        self._service = CompletionService(
            self.engine,
            self.chat_format,
            self.names,
            self.limits,
            self._threads,
            training=self.training,
            refuse_altered=self.refuse_altered,
        )
        self.sessions = Sessions(self.limits, lambda session: self.engine.end_session(session.key), self.adapters)
        self._ignored = Ignored(self.names)

    @property
    def generated_tokens(self) -> int:
        """How many it has had generated so far."""
        return self._service.generated_tokens

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's clients. Anthropic's take `url`."""
        return f"{self.url}/v1"

    def open_session(self, defaults: SamplingDefaults | None = None, call_log: CallLog | None = None) -> Session:
        """Return a session with a key of its own, whose calls are kept in `call_log`.

        Raises:
            TooManySessionsError: There are `proxy.max_sessions` already.
        """
        return self.sessions.open(defaults, call_log)

    def close_session(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        self.sessions.close(session)

    async def handle(self, method: str, target: str, headers: Mapping[str, str], body: Body) -> Response:
        """Answer one HTTP request. Its body is read once its key is known to be good.

        Args:
            method: its method.
            target: its path, with its query.
            headers: its headers.
            body: its body.
        """
        begun = time.monotonic()
        path, _, query = target.partition("?")
        path = path.rstrip("/") or "/"
        key = request_key(headers, query)
        cors = cors_headers(self.limits.cors_origins, headers)
        with refusals(method, path) as answered, traces.taken_over(headers):
            if method == "OPTIONS" and cors:
                answered.reply = Response(status=204, extra_headers=preflight_headers(headers))
            else:
                is_sse = "alt=sse" in query.split("&")
                answered.reply = await self._answer(method, path, key, body, is_sse=is_sse, again=is_retry(headers))
        reply = answered.reply
        if method == "POST" and (session := self.sessions.known(key)) is not None:
            most = self.limits.max_requests_per_session
            reply.extra_headers |= rate_limit_headers(path, most, session.activity.requests)
        reply.extra_headers |= cors | {
            "x-request-id": answered.request_id,
            "request-id": answered.request_id,
            "openai-processing-ms": str(round(1000 * (time.monotonic() - begun))),
        }
        return reply

    async def _answer(
        self, method: str, path: str, key: str, body: Body, *, is_sse: bool = False, again: bool = False
    ) -> Response:
        if method == "HEAD":
            return replace(await self._answer("GET", path, key, body), body=b"")
        if (called := gemini.called(path)) is not None and method == "POST":
            role = self.sessions.find(key)
            model, name = called
            if name == "countTokens":
                return await self._count(partial(gemini.count, model), role, body)
            framing: Framing | None = None if name == "generateContent" else "plain" if is_sse else "array"
            return await self._reply(partial(gemini.read, model, framing), path, role, body)
        known = {"/", "/health", COUNT_TOKENS, *READERS}
        match method, path:
            case "GET", "/":
                return json_response({"service": "agentrl", "model": self.model})
            case "GET", "/health":
                await self.engine.health()
                return Response(b'{"status":"ok"}')
            case "GET", _ if (listed := MODELS.fullmatch(path)) is not None:
                self.sessions.find(key)
                return json_response(self._models(listed[1]))
            case "GET" | "DELETE", _ if path.startswith(RESPONSES):
                return json_response(
                    responses.stored_response(self.sessions.find(key).session, method, path.removeprefix(RESPONSES))
                )
            case "POST", _ if path == COUNT_TOKENS:
                return await self._count(messages.count, self.sessions.find(key), body)
            case "POST", _ if path in READERS:
                return await self._reply(READERS[path], path, self.sessions.find(key), body, again=again)
        if path in known or path.startswith(RESPONSES) or MODELS.fullmatch(path) is not None:
            raise ApiError(405, f"{method} is not allowed on {path}.")
        raise ApiError(404, f"Unknown path {path}.", code="unknown_url")

    def _models(self, name: str | None) -> Json:
        context = self._service.preparation.context_length
        if name is None:
            return model_list(self.names.listed(), context)
        self.names.check(name)
        return one_model(name, context)

    async def _count(self, count: Count, role: SessionRole, body: Body) -> Response:
        with self._request_in_work(role.session):
            received = await self._received(body)
            counted = await self._prepared(role.session, received, lambda: count(self._service, role, received))
        return json_response(counted)

    async def _reply(self, read: Read, path: str, role: SessionRole, body: Body, *, again: bool = False) -> Response:
        session, within = role.session, traces.current_or(role.session.trace)
        with self._request_in_work(session):
            received = await self._received(body)
            writer = await self._prepared(session, received, lambda: read(self._service, role, received))
            recall(writer.calls)
            if session.tries.begin(writer.calls[0].digest, again=again):
                repeat(writer.calls)
            answer = Answer(self._service, writer, path, within, self._threads)
            if writer.stream:
                reply = answer.stream(self._tasks, self._request_in_work(session, admitted=True))
            else:
                reply = await answer.whole()
            reply.extra_headers |= self._ignored.header(session, writer.calls[0].request)
        return reply

    async def _received(self, body: Body) -> bytes:
        received = body if isinstance(body, bytes) else await body()
        check_body(received, self.limits)
        return received

    async def _prepared(self, session: Session, body: bytes, prepare: Callable[[], T]) -> T:
        size = len(body)
        if b"previous_response_id" in body:
            size += 8 * session.longest_prompt  # the conversation that it goes on from is here already
        if self.chat_format.takes_images and b"image" in body:
            size += 2**20  # images take a while to cut
        return await run_sized(session, size, prepare, self._threads)

    @contextmanager
    def _request_in_work(self, session: Session, *, admitted: bool = False) -> Iterator[None]:
        """Keep a session from being closed as idle, and from asking for more than it may (unless it is `admitted`).

        Raises:
            ApiError: 429: it asks for more.
        """
        activity = session.activity
        if not admitted and activity.requests >= self.limits.max_requests_per_session:
            session.tries.refused()
            limit = f"`proxy.max_requests_per_session` = {self.limits.max_requests_per_session}"
            raise ApiError(
                429, f"This session has as many requests in work as {limit} allows.", code="too_many_requests"
            )
        activity.requests += 1
        try:
            yield
        finally:
            activity.requests -= 1
            activity.last_used = time.monotonic()

    def in_process_transport(self) -> httpx2.AsyncBaseTransport:
        """Return a transport that hands requests straight to this proxy, for clients in this process."""
        return _InProcessTransport(self)


class _InProcessTransport(httpx2.AsyncBaseTransport):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.query.decode()
        target = f"{request.url.path}?{query}" if query else request.url.path
        reply = await self._proxy.handle(request.method, target, request.headers, await request.aread())
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
