"""The one loop that answers a request, in any dialect: its replies are generated all at once, and a writer says them.

a dialect's `read` ─► requests, and their Writer ─► answer ─► CompletionService.reply, once a choice ─► Writer: whole, or events ─► the client
                                                                                          └─ `record`, as the client takes the last of it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.abc
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService, record
from agentrl.proxy.errors import ApiError, error_json, map_errors
from agentrl.proxy.http_messages import Response, to_json
from agentrl.system import traces

Framing = Literal["named", "done", "plain", "array"]
"""How events are written: server-sent, each with its name, or with `[DONE]` at the end, or without either; or as one JSON array."""


class Writer(ABC):
    """Write the replies to one request in the words of one API, whole or as events. It waits for nothing."""

    framing: Framing

    def __init__(self, calls: Sequence[PreparedCompletion], *, stream: bool) -> None:
        self.calls = calls
        """The request, as one call for each of its prompts."""
        self.stream = stream

    @property
    def choices(self) -> list[tuple[PreparedCompletion, int]]:
        """The replies that are asked for, in the order of the client's indices: each a call, and which of its replies."""
        each = self.calls[0].request.choices // len(self.calls)
        return [(call, index) for call in self.calls for index in range(each)]

    @abstractmethod
    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the replies as one."""

    def opening(self) -> Iterable[Json]:
        """Return the events before anything is generated."""
        return ()

    @abstractmethod
    def delta(self, index: int, delta: Delta) -> Iterable[Json]:
        """Return the events for what reply `index` gained."""

    @abstractmethod
    def ended(self, index: int, reply: Completion) -> Iterable[Json]:
        """Return the events that end reply `index`, at least one. Who has the last of them has all of the reply."""

    def closing(self, replies: Sequence[Completion]) -> Iterable[Json]:
        """Return the events after all replies have ended."""
        return ()

    def failed(self, error: ApiError) -> Json | None:
        """Return the event that ends a stream with an error; None: it is said as in a reply that refuses a request."""
        return None


ReadRequest = tuple[Sequence[CompletionRequest], Callable[[Sequence[PreparedCompletion]], Writer]]
"""A request as a dialect reads it: one for each of its prompts, and what makes the writer of their replies."""
_Say = Callable[[Iterable[Json], bool], Awaitable[None]]
"""Hands on events. With True, who has the last of them has all of the reply."""


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    Args:
        service: what generates its replies.
        writer: what says them.
        path: the path that was asked, whose API's words errors are in.
        within: the context of its span's parent.
    """

    service: CompletionService
    writer: Writer
    path: str
    within: Context

    async def whole(self) -> Response:
        """Return the whole reply, which is recorded.

        Raises:
            ApiError: The episode has ended.
            EngineError: The engine failed.
        """
        calls = self.writer.calls
        with _call_span(calls, self.within) as span:
            content = self.writer.whole(await self._replies())
            _describe_replies(span, calls)
        body = to_json(content)
        record(calls)
        return Response(body)

    def stream(self, tasks: anyio.abc.TaskGroup, in_work: AbstractContextManager[None]) -> Response:
        """Return the reply as events.

        Args:
            tasks: where it is generated, in a task that ends when the reader leaves.
            in_work: entered while it is.
        """
        kind = "application/json" if self.writer.framing == "array" else "text/event-stream; charset=utf-8"
        return Response(events=self._events(tasks, in_work), extra_headers={"Content-Type": kind})

    async def _events(
        self, tasks: anyio.abc.TaskGroup, in_work: AbstractContextManager[None]
    ) -> AsyncGenerator[bytes, None]:
        send, receive = anyio.create_memory_object_stream[tuple[Json, bool]](16)
        calls, framing, scope, sent = self.writer.calls, self.writer.framing, anyio.CancelScope(), 0

        async def say(events: Iterable[Json], whole: bool) -> None:
            said = list(events)
            for event in said:
                await send.send((event, whole and event is said[-1]))

        async def run() -> None:
            with scope, in_work:
                async with send:
                    # This task is the proxy's own: what leaves it would end the proxy with all its episodes.
                    with map_errors("POST", self.path) as handled, _call_span(calls, self.within) as span:
                        await say(self.writer.opening(), False)
                        replies = await self._replies(say)
                        await say(self.writer.closing(replies), False)
                        _describe_replies(span, calls)
                    if handled.error is not None:
                        await say([self._failure(handled.error)], False)

        tasks.start_soon(run)
        try:
            async with receive:
                async for event, whole in receive:
                    content = to_json(event)
                    if whole:
                        try:
                            record(calls)
                        except ApiError as error:
                            event = self._failure(error)
                            content = to_json(event)
                            scope.cancel()
                    sent += 1
                    yield _framed(framing, event, content, sent - 1)
            if end := _closing(framing, sent):
                yield end
        finally:
            scope.cancel()

    async def _replies(self, say: _Say | None = None) -> list[Completion]:
        """Generate all replies at the same time; with `say`, say each as it grows and when it ends."""
        choices = self.writer.choices
        replies: dict[int, Completion] = {}

        async def one(index: int) -> None:
            call, number = choices[index]
            emit = None if say is None else lambda delta: say(self.writer.delta(index, delta), False)
            reply = await self.service.reply(call, number, emit)
            replies[index] = reply
            if say is not None:
                await say(self.writer.ended(index, reply), len(replies) == len(choices))

        if len(choices) == 1:
            await one(0)
        else:
            async with anyio.create_task_group() as group:
                for index in range(len(choices)):
                    group.start_soon(one, index)
        return [replies[index] for index in range(len(choices))]

    def _failure(self, error: ApiError) -> Json:
        return self.writer.failed(error) or error_json(error, self.path)


def _framed(framing: Framing, event: Json, content: bytes, index: int) -> bytes:
    """Return event number `index` as it is sent; `content` is its JSON."""
    if framing == "array":
        return (b",\n" if index else b"[") + content
    name = f"event: {event['type']}\n".encode() if framing == "named" and "type" in event else b""
    return name + b"data: " + content + b"\n\n"


def _closing(framing: Framing, count: int) -> bytes:
    """Return what ends a stream of `count` events."""
    ends: dict[Framing, bytes] = {"done": b"data: [DONE]\n\n", "array": b"]" if count else b"[]"}
    return ends.get(framing, b"")


def _call_span(calls: Sequence[PreparedCompletion], within: Context) -> AbstractContextManager[Span]:
    """Record a block, which makes the replies to one request, as a span in the words of OpenTelemetry's conventions for generative AI: docs/trackers.md.

    Args:
        calls: The request, as one call for each of its prompts.
        within: The context of the span's parent.
    """
    asked = calls[0].request
    operation = "chat" if asked.raw is None else "text_completion"
    names = {"gen_ai.operation.name": operation, "gen_ai.request.model": asked.model, "gen_ai.provider.name": "agentrl"}
    return traces.span(f"{operation} {asked.model}", names, kind=SpanKind.CLIENT, within=within)


def _describe_replies(span: Span, calls: Sequence[PreparedCompletion]) -> None:
    """Write into the span of a request how its replies ended, and what they took."""
    if not span.is_recording():
        return
    replies = [reply for call in calls for _, reply in sorted(call.made.items())]
    versions = [part.version for reply in replies for part in reply.generation.versions]
    span.set_attributes(
        {
            "gen_ai.response.id": calls[0].id,
            "gen_ai.response.finish_reasons": [reply.finish for reply in replies],
            "gen_ai.usage.input_tokens": sum(len(call.prompt.input_ids) for call in calls),
            "gen_ai.usage.output_tokens": sum(len(reply.generation.output_ids) for reply in replies),
            "gen_ai.usage.cache_read.input_tokens": sum(reply.generation.cached_tokens for reply in replies),
        }
    )
    if role := calls[0].role.name:
        span.set_attribute("agentrl.role", role)
    if versions:
        span.set_attributes({"agentrl.version.oldest": min(versions), "agentrl.version.newest": max(versions)})
