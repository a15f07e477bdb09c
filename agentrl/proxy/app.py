"""The proxy: sessions, and the model APIs over two doors that lead to the same place.

episode.client ── in_process_transport.py ──┐
                                            ├─► Proxy.handle: key ─► session and role; method and path ─► dialect
any other program ── server.py ─────────────┘
    │
    body (`limits.py`), parsed once by the dialect's model ─► CompletionRequest ─► prompt by the longest recorded prefix ─► Engine.generate
    │
    Generation ─► call log and record ─► the dialect's events, by one writer ─► the client
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import anyio
import anyio.abc
import httpx2
from opentelemetry.context import Context

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine
from agentrl.proxy.call_span import call_span, describe_replies
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.completion import CompletionRequest, Json, PreparedCompletion, Send, recall, repeat
from agentrl.proxy.completion_service import INLINE_BYTES, CompletionService, logprob_bytes, record, run_sized
from agentrl.proxy.dialects import gemini
from agentrl.proxy.dialects.chat_completions import ChatCompletions
from agentrl.proxy.dialects.completions import Completions
from agentrl.proxy.dialects.messages import Messages
from agentrl.proxy.dialects.models import model_list, one_model
from agentrl.proxy.dialects.responses import Responses, stored_response
from agentrl.proxy.errors import ApiError, error_event, map_errors
from agentrl.proxy.http_messages import Framing, Response, closing, framed, is_retry, json_response, request_key
from agentrl.proxy.in_process_transport import InProcessTransport
from agentrl.proxy.json_text import json_pieces, to_json
from agentrl.proxy.limits import check_body
from agentrl.proxy.model_names import ModelNames
from agentrl.proxy.session import SamplingDefaults, Session, SessionRole
from agentrl.proxy.sessions import Sessions
from agentrl.record.recorded_choice import CallLog
from agentrl.system import traces

log = logging.getLogger(__name__)
T = TypeVar("T")
Body = bytes | Callable[[], Awaitable[bytes]]
"""A request's body, or how to receive it. Raises ApiError."""
Handle = Callable[[str, str, Mapping[str, str], Body], Awaitable[Response]]
"""Answers a request: its method, its path with its query, its headers, its body."""

COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
RESPONSES = "/v1/responses/"
MAX_TOP_LOGPROBS = 20
MAX_IGNORED = 64
"""Names of ignored fields that are counted."""
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
        self.ignored: Counter[str] = Counter()
        """How many requests asked for each field, tool or name of the model that is ignored, since it changes nothing that is sampled."""

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
        path, _, query = target.partition("?")
        path = path.rstrip("/") or "/"
        with map_errors(method, path) as handled, traces.taken_over(headers):
            handled.reply = await self._answer(method, path, query, headers, body)
        handled.reply.extra_headers |= {"x-request-id": handled.request_id, "request-id": handled.request_id}
        return handled.reply

    async def _answer(self, method: str, path: str, query: str, headers: Mapping[str, str], body: Body) -> Response:
        key = request_key(headers, query)
        if (called := gemini.called(path)) is not None and method == "POST":
            is_sse = "alt=sse" in query.split("&")
            return await self._google(*called, self.sessions.find(key), path, body, "plain" if is_sse else "array")
        match method, path:
            case "HEAD", _:
                return replace(await self._answer("GET", path, query, headers, body), body=b"")
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
                return await self._reply(self._endpoints[path], path, role, body, framing, again=is_retry(headers))
        raise ApiError(404, f"There is no {method} {path}.", code="unknown_url")

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
            if again:
                repeat(asked)
            self._note_ignored(asked[0].request)
            if not request.stream:
                with call_span(asked, within) as span:
                    content = await endpoint.complete(request, calls)
                    describe_replies(span, asked)
                written = await self._written(content, len(received))
                record(asked)
                return written
        events = self._events(path, framing, asked, within, lambda send: endpoint.stream(request, calls, send))
        return Response(events=events, framing=framing)

    def _note_ignored(self, request: CompletionRequest) -> None:
        """Count what a client asks for and does not get; the log names each field once."""
        names = [*request.ignored, *([] if self.names.known(request.model) else ["model"])]
        new = [name for name in names if name not in self.ignored][: MAX_IGNORED - len(self.ignored)]
        self.ignored.update(name for name in names if name in self.ignored or name in new)
        if new:
            log.warning("Agents ask for what changes no reply, and is ignored: %s (docs/api.md)", ", ".join(new))

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
        return await run_sized(size, prepare, self._threads)

    async def _written(self, content: Json, echoed: int) -> Response:
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
        return await self._large_json(content) if size > INLINE_BYTES else json_response(content)

    @contextmanager
    def _request_in_work(self, session: Session, *, admitted: bool = False) -> Iterator[None]:
        """Keep a session from being closed as idle, and from asking for more than it may (unless it is `admitted`).

        Raises:
            ApiError: 429: it asks for more.
        """
        activity = session.activity
        if not admitted and activity.requests >= self.limits.max_requests_per_session:
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
                    with map_errors("POST", path) as handled, call_span(calls, within) as span:
                        await stream(put)
                        describe_replies(span, calls)
                    if handled.error is not None:
                        await put(error_event(handled.error, path, sent))

        self._tasks.start_soon(run)
        try:
            async with receive:
                async for event, whole in receive:
                    content = await self._event_bytes(event)
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

    async def _event_bytes(self, event: Json) -> bytes:
        if not any(choice.get("logprobs") for choice in event.get("choices", ())):
            return to_json(event)
        return (await self._large_json(event)).body

    async def _large_json(self, content: Json) -> Response:
        written = await run_sized(INLINE_BYTES + 1, lambda: b"".join(json_pieces(content)), self._threads)
        return Response(written)

    def in_process_transport(self) -> httpx2.AsyncBaseTransport:
        """Return a transport that hands requests straight to this proxy, for clients in this process."""
        return InProcessTransport(self.handle)
