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
from typing import Any, Protocol, TypeVar

import anyio
import anyio.abc
import httpx2
from opentelemetry.context import Context

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.bounds import check_body
from agentrl.proxy.call_span import call_span, describe_replies
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.completion import Json, PreparedCompletion, Send, recall, repeat
from agentrl.proxy.completion_service import INLINE_BYTES, CompletionService, logprob_bytes, record, run_sized
from agentrl.proxy.dialects import gemini
from agentrl.proxy.dialects.chat_completions import ChatCompletions
from agentrl.proxy.dialects.completions import Completions
from agentrl.proxy.dialects.messages import Messages
from agentrl.proxy.dialects.models import model_list, one_model
from agentrl.proxy.dialects.responses import Responses, stored_response
from agentrl.proxy.headers import cors_headers, is_retry, preflight_headers, rate_limit_headers, request_key
from agentrl.proxy.http_response import Framing, Response, closing, error_event, framed, json_response, refusals
from agentrl.proxy.ignored import Ignored
from agentrl.proxy.json_text import json_pieces, to_json
from agentrl.proxy.model_names import ModelNames
from agentrl.proxy.session import SamplingDefaults, Session, SessionRole
from agentrl.proxy.sessions import Sessions
from agentrl.record.recorded_choice import CallLog
from agentrl.system import traces

T = TypeVar("T")
Body = bytes | Callable[[], Awaitable[bytes]]
"""A request's body, or how to receive it. Raises ApiError."""
Handle = Callable[[str, str, Mapping[str, str], Body], Awaitable[Response]]
"""Answers a request: its method, its path with its query, its headers, its body."""

COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
RESPONSES = "/v1/responses/"
MAX_TOP_LOGPROBS = 20
NAMED_EVENTS = ("/v1/responses", "/v1/messages")
_OUTPUT_TOKENS = ("completion_tokens", "output_tokens", "candidatesTokenCount")


class Endpoint(Protocol):
    """One API that makes replies. `prepare` answers bad requests with ApiError before any work starts."""

    def prepare(self, role: SessionRole, body: bytes) -> tuple[Any, Any]:
        """Check a request; return it, and its call, or a list of one for each of its prompts.

        Raises:
            ApiError: The request cannot be answered.
        """
        ...

    async def complete(self, request: Any, call: Any) -> Json:
        """Return the whole reply.

        Raises:
            ApiError: The engine failed, or the episode has ended.
        """
        ...

    async def stream(self, request: Any, call: Any, send: Send) -> None:
        """Send the events of a reply. An ApiError that it raises ends the stream, as one more event."""
        ...


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
        self._service = service = CompletionService(
            self.engine,
            self.chat_format,
            self.names,
            self.limits,
            self._threads,
            training=self.training,
            refuse_altered=self.refuse_altered,
        )
        self._messages = Messages(service)
        self._endpoints: dict[str, Endpoint] = {
            "/v1/chat/completions": ChatCompletions(service),
            "/v1/completions": Completions(service),
            "/v1/responses": Responses(service),
            "/v1/messages": self._messages,
        }
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
            return await self._google(*called, self.sessions.find(key), path, body, "plain" if is_sse else "array")
        known = {"/", "/health", COUNT_TOKENS, *self._endpoints}
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
                    stored_response(self.sessions.find(key).session, method, path.removeprefix(RESPONSES))
                )
            case "POST", _ if path == COUNT_TOKENS:
                return await self._count(self.sessions.find(key), body, self._messages.count)
            case "POST", _ if path in self._endpoints:
                framing: Framing = "named" if path in NAMED_EVENTS else "done"
                role = self.sessions.find(key)
                return await self._reply(self._endpoints[path], path, role, body, framing, again=again)
        if path in known or path.startswith(RESPONSES) or MODELS.fullmatch(path) is not None:
            raise ApiError(405, f"{method} is not allowed on {path}.")
        raise ApiError(404, f"Unknown path {path}.", code="unknown_url")

    async def _google(
        self, model: str, method: str, role: SessionRole, path: str, body: Body, framing: Framing
    ) -> Response:
        endpoint = gemini.GenerateContent(self._service, model, method)
        if method == "countTokens":
            return await self._count(role, body, endpoint.count)
        return await self._reply(endpoint, path, role, body, framing)

    def _models(self, name: str | None) -> Json:
        context = self._service.preparation.context_length
        if name is None:
            return model_list(self.names.listed(), context)
        self.names.check(name)
        return one_model(name, context)

    async def _count(self, role: SessionRole, body: Body, count: Callable[[SessionRole, bytes], Json]) -> Response:
        with self._request_in_work(role.session):
            received = await self._received(body)
            counted = await self._prepared(role.session, received, lambda: count(role, received))
        return json_response(counted)

    async def _reply(
        self,
        endpoint: Endpoint,
        path: str,
        role: SessionRole,
        body: Body,
        framing: Framing,
        *,
        again: bool = False,
    ) -> Response:
        session, within = role.session, traces.current_or(role.session.trace)
        with self._request_in_work(session):
            received = await self._received(body)
            request, calls = await self._prepared(session, received, lambda: endpoint.prepare(role, received))
            asked: list[PreparedCompletion] = calls if isinstance(calls, list) else [calls]
            recall(asked)
            if session.tries.begin(asked[0].digest, again=again):
                repeat(asked)
            if not request.stream:
                with call_span(asked, within) as span:
                    content = await endpoint.complete(request, calls)
                    describe_replies(span, asked)
                written = await self._written(session, content, len(received))
                record(asked)
                written.extra_headers |= self._ignored.header(session, asked[0].request)
                return written
            ignored = self._ignored.header(session, asked[0].request)
        events = self._events(path, framing, asked, within, lambda send: endpoint.stream(request, calls, send))
        return Response(events=events, extra_headers=ignored, framing=framing)

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

    async def _written(self, session: Session, content: Json, echoed: int) -> Response:
        tokens = next(
            (
                n
                for name, n in (content.get("usage") or content.get("usageMetadata") or {}).items()
                if name in _OUTPUT_TOKENS
            ),
            0,
        )
        logprobs = any(choice.get("logprobs") for choice in content.get("choices", ()))
        size = echoed + (logprob_bytes(tokens, MAX_TOP_LOGPROBS) if logprobs else 8 * tokens)
        return await self._large_json(session, content) if size > INLINE_BYTES else json_response(content)

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

    async def _events(
        self,
        path: str,
        framing: Framing,
        calls: list[PreparedCompletion],
        within: Context,
        stream: Callable[[Send], Awaitable[None]],
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a streamed reply. It is made in a task of the proxy, which ends when the reader leaves.

        It is recorded when the reader takes the event with which it has all of it.
        """
        send, receive = anyio.create_memory_object_stream[tuple[Json, bool]](16)
        session = calls[0].session
        scope = anyio.CancelScope()
        sent = 0

        async def put(event: Json, *, whole: bool = False) -> None:
            await send.send((event, whole))

        async def run() -> None:
            with scope, self._request_in_work(session, admitted=True):
                async with send:
                    # This task is the proxy's own: what leaves it would end the proxy with all its episodes.
                    with refusals("POST", path) as answered, call_span(calls, within) as span:
                        await stream(put)
                        describe_replies(span, calls)
                    if answered.error is not None:
                        await put(error_event(answered.error, path, sent))

        self._tasks.start_soon(run)
        try:
            async with receive:
                async for event, whole in receive:
                    content = await self._event_bytes(session, event)
                    if whole:
                        try:
                            record(calls)
                        except ApiError as error:
                            event = error_event(error, path, sent)
                            content = to_json(event)
                            scope.cancel()
                    sent += 1
                    yield framed(framing, event, content, sent - 1)
            if end := closing(framing, sent):
                yield end
        finally:
            scope.cancel()

    async def _event_bytes(self, session: Session, event: Json) -> bytes:
        if not any(choice.get("logprobs") for choice in event.get("choices", ())):
            return to_json(event)
        return (await self._large_json(session, event)).body

    async def _large_json(self, session: Session, content: Json) -> Response:
        written = await run_sized(session, INLINE_BYTES + 1, lambda: b"".join(json_pieces(content)), self._threads)
        return Response(written)

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
