"""The proxy: sessions, and the one way in for a request of any dialect.

episode.client ── InProcessTransport (`http_messages.py`) ──┐
any other program ── a socket (`server.py`) ────────────────┴─► Proxy.handle: key ─► session and role; method and path ─► dialect
                                                                   │
       body, parsed once by the dialect's model ─► CompletionRequest, within `limits.py` ─► prompt by the longest recorded prefix
                                                                   │
                    Engine.generate ─► Generation ─► call log and record ─► the dialect's events, by one writer (`answer.py`)
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import anyio.abc

from agentrl.proxy.answer import Answer, Framing, ReadRequest, Writer
from agentrl.proxy.call_log import number_choices, replay_logged, reuse_reply
from agentrl.proxy.completion import CompletionRequest, Json
from agentrl.proxy.completion_service import BYTES_PER_TOKEN, CompletionService, run_sized
from agentrl.proxy.dialects import chat_completions, completions, gemini, messages, responses
from agentrl.proxy.errors import ApiError, map_errors
from agentrl.proxy.http_messages import Body, Response, is_retry, json_response, request_key
from agentrl.proxy.model_list import model_list, one_model
from agentrl.proxy.session import SamplingDefaults, Session, SessionRole, Sessions
from agentrl.record.recorded_choice import CallLog
from agentrl.system import traces

log = logging.getLogger(__name__)
Read = Callable[[Session, bytes], ReadRequest]
"""Reads the body of a session's request. Raises ApiError."""

DIALECTS: dict[str, tuple[Read, str]] = {
    "/v1/chat/completions": (chat_completions.read, "chatcmpl-"),
    "/v1/completions": (completions.read, "cmpl-"),
    "/v1/responses": (responses.read, "resp_"),
    "/v1/messages": (messages.read, "msg_"),
}
"""Path -> the reader of its requests, and how the ids of its replies begin. Google's begin with nothing."""
MODELS = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
RESPONSES = "/v1/responses/"
MAX_IGNORED = 64
"""Names of ignored fields that are counted."""


@dataclass(eq=False, kw_only=True)
class Proxy(CompletionService):
    """A completion service behind the paths of the model APIs. Open it with `open_proxy`."""

    tasks: anyio.abc.TaskGroup
    """Where streams are generated."""
    adapters: tuple[str, ...] = ()
    """The roles that have LoRA adapters of their own, if some have: others are refused then."""
    url: str = ""
    """Where other programs reach it: `http://127.0.0.1:PORT`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sessions = Sessions(self.limits, lambda session: self.engine.end_session(session.key), self.adapters)
        self.ignored: Counter[str] = Counter()
        """How many requests asked for each field, tool or name of the model that is ignored, since it changes nothing that is sampled."""

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's clients. Anthropic's take `url`."""
        return f"{self.url}/v1"

    def open_session(self, defaults: SamplingDefaults | None = None, call_log: CallLog | None = None) -> Session:
        """Return a session with a key of its own, whose calls are kept in `call_log`.

        Raises:
            TooManySessionsError: There are as many as there may be.
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
        if method == "HEAD":
            return replace(await self._answer("GET", path, query, headers, body), body=b"")
        if (method, path) == ("GET", "/"):
            return json_response({"service": "agentrl", "model": self.model})
        if (method, path) == ("GET", "/health"):
            await self.engine.health()
            return json_response({"status": "ok"})
        role = self.sessions.find(request_key(headers, query))
        match method, path:
            case "POST", _ if path in DIALECTS:
                return await self._reply(*DIALECTS[path], path, role, body, again=is_retry(headers))
            case "POST", "/v1/messages/count_tokens":
                return json_response({"input_tokens": await self._count(messages.read, role, body)})
            case "POST", _ if (called := gemini.called(path)) is not None:
                model, name = called
                streamed: Framing = "plain" if "alt=sse" in query.split("&") else "array"
                read = partial(gemini.read, model, streamed if name == "streamGenerateContent" else None)
                if name == "countTokens":
                    return json_response({"totalTokens": await self._count(read, role, body)})
                return await self._reply(read, "", path, role, body)
            case "GET", _ if (listed := MODELS.fullmatch(path)) is not None:
                return json_response(self._models(listed[1]))
            case "GET" | "DELETE", _ if path.startswith(RESPONSES):
                return json_response(responses.stored_response(role.session, method, path.removeprefix(RESPONSES)))
        hint = " The base URL has one /v1 too many." if path.startswith("/v1/v1") else ""
        if f"/v1{path}" in DIALECTS:
            hint = " The base URL ends in /v1."
        raise ApiError(404, f"There is no {method} {path}.{hint}", code="unknown_url")

    def _models(self, name: str | None) -> Json:
        if name is None:
            return model_list(self.model, self.context_length)
        return one_model(name, self.context_length)

    async def _count(self, read: Read, role: SessionRole, body: Body) -> int:
        with self._request_in_work(role.session):
            writer = await self._prepared(read, "", role, body)
        return len(writer.calls[0].prompt.input_ids)

    async def _reply(
        self, read: Read, id_prefix: str, path: str, role: SessionRole, body: Body, *, again: bool = False
    ) -> Response:
        session, within = role.session, traces.current_or(role.session.trace)
        with self._request_in_work(session):
            writer = await self._prepared(read, id_prefix, role, body)
            replay_logged(writer.calls)
            if again:
                reuse_reply(writer.calls)
            self._note_ignored(writer.calls[0].request)
            answer = Answer(self, writer, path, within)
            if writer.stream:
                return answer.stream(self.tasks, self._request_in_work(session))
            return await answer.whole()

    def _note_ignored(self, request: CompletionRequest) -> None:
        """Count what a client asks for and does not get; the log names each field once."""
        names = request.ignored
        new = [name for name in names if name not in self.ignored][: MAX_IGNORED - len(self.ignored)]
        self.ignored.update(name for name in names if name in self.ignored or name in new)
        if new:
            log.warning("Agents ask for what changes no reply, and is ignored: %s (docs/api.md)", ", ".join(new))

    async def _prepared(self, read: Read, id_prefix: str, role: SessionRole, body: Body) -> Writer:
        """Receive a request and prepare it: the work is on all of its body, or on the conversation of before that it leaves out."""
        received = body if isinstance(body, bytes) else await body()

        def prepare() -> Writer:
            requests, writer_of = read(role.session, received)
            calls = [self.prepare(role, request, id_prefix) for request in requests]
            number_choices(calls)
            return writer_of(calls)

        turns = role.session.record.turns
        held = BYTES_PER_TOKEN * turns[-1].length if turns else 0
        return await run_sized(max(len(received), held), prepare, self.threads)

    @contextmanager
    def _request_in_work(self, session: Session) -> Iterator[None]:
        """Keep a session from being closed as idle."""
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.last_used = time.monotonic()
