"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.proxy.answer import Writer
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.dialects.messages_request import MessagesRequest, shown_id
from agentrl.proxy.errors import ApiError, invalid, read_body
from agentrl.proxy.prefill import with_prefill
from agentrl.proxy.session import History, Session, SessionRole
from agentrl.proxy.tool_calls import readable_part, values_so_far

_SIGNATURE = "YWdlbnRybA=="
"""Clients send a thought back as one only if it is signed, and as a text of their own otherwise. Nothing reads it here."""


class MessagesWriter(Writer):
    """Write a reply as a `message`, or as the events of its blocks: one is open at a time, and is closed when the next begins."""

    framing = "named"

    def __init__(self, call: PreparedCompletion, request: MessagesRequest) -> None:
        super().__init__([call], stream=request.stream)
        self._keeps_thread = request.thread is not None
        self._index = -1
        self._open = ""
        """The type of the block that is open; "": none."""
        self._arguments = ""
        """Of the tool call that is open, as the policy writes them."""
        self._sent_arguments = ""

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        (reply,) = replies
        self._remember(reply)
        return {**self._head(), "content": _content(reply), **_ending(reply), "usage": self._usage(reply)}

    def opening(self) -> Iterator[Json]:
        """Begin the message."""
        start: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(None)}
        yield {"type": "message_start", "message": {**self._head(), **start}}

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what the message gained."""
        if (tool := delta.begun_call) is not None and not delta.arguments:
            self._arguments = self._sent_arguments = ""
            yield from self._begin({**_tool_use(tool), "input": {}})
        elif tool is not None or delta.tool_call is not None:
            self._arguments += delta.arguments
            shown = _shown_arguments(self._arguments, delta.tool_call)
            if piece := shown[len(self._sent_arguments) :]:
                self._sent_arguments = shown
                yield self._piece({"type": "input_json_delta", "partial_json": piece})
        elif delta.reasoning:
            if self._open != "thinking":
                yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            yield self._piece({"type": "thinking_delta", "thinking": delta.reasoning})
        else:
            if self._open != "text":
                yield from self._begin({"type": "text", "text": ""})
            yield self._piece({"type": "text_delta", "text": delta.text})

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End the message."""
        if self._index < 0:
            yield from self._begin({"type": "text", "text": ""})
        yield from self._close()
        self._remember(reply)
        yield {"type": "message_delta", "delta": _ending(reply), "usage": self._usage(reply)}

    def closing(self, replies: Sequence[Completion]) -> Iterator[Json]:
        """End the stream."""
        yield {"type": "message_stop"}

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._index, self._open = self._index + 1, block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._open == "thinking":
            yield self._piece({"type": "signature_delta", "signature": _SIGNATURE})
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _piece(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _head(self) -> Json:
        (call,) = self.calls
        return {"id": call.id, "type": "message", "role": "assistant", "model": call.request.model}

    def _usage(self, reply: Completion | None) -> Json:
        cached = reply.generation.cached_tokens if reply else 0
        return {
            "input_tokens": len(self.calls[0].prompt.input_ids) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(reply.generation.output_ids) if reply else 0,
        }

    def _remember(self, reply: Completion) -> None:
        (call,) = self.calls
        if not self._keeps_thread:
            return
        asked = call.request.messages[: -1 if call.request.continues else None]
        said = with_prefill(call.prompt.prefill, reply.message.to_json())
        call.session.histories[call.id] = History([*asked, said], call.request.tools)


def _content(reply: Completion) -> list[Json]:
    message = reply.message
    blocks: list[Json] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": _SIGNATURE})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content})
    return blocks + [
        {**_tool_use(call), "input": values_so_far(call["function"]["arguments"])} for call in message.tool_calls
    ]


def _tool_use(call: Json) -> Json:
    return {"type": "tool_use", "id": shown_id(call["id"]), "name": call["function"]["name"]}


def _shown_arguments(text: str, call: Json | None) -> str:
    """Return what a client is sent of arguments so far, and of those of a whole call: it takes JSON of an object alone, which may be cut off."""
    if text.lstrip().startswith("{"):
        return readable_part(text)
    return json.dumps(values_so_far(call["function"]["arguments"])) if call is not None else ""


def _ending(reply: Completion) -> Json:
    stopped_by = None if reply.finish == "tool_calls" else reply.message.stopped_by
    reasons = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
    return {
        "stop_reason": reasons[reply.finish] if stopped_by is None else "stop_sequence",
        "stop_sequence": stopped_by,
    }


def _asked(request: MessagesRequest, before: History | None) -> CompletionRequest:
    """Return the request after the conversation that it goes on with, whose `system` and `tools` are those that it began with.

    Raises:
        ApiError: The request has another `system`.
    """
    asked = request.to_completion_request()
    if before is None:
        return asked
    known, added = before.messages, asked.messages
    if request.system:
        if added[0] not in known[:1]:
            message = "Unsupported 'system': the thread goes on with the one that it began with; leave it out."
            raise ApiError(400, message, param="system", code="unsupported_value")
        added = added[1:]
    return replace(asked, messages=[*known, *added], tools=asked.tools or before.tools)


def _before(request: MessagesRequest, session: Session) -> History | None:
    """Return the conversation of the thread that a request goes on with; None: it begins one.

    Raises:
        ApiError: The session has no such thread.
    """
    if request.thread is None or request.thread.type != "continue":
        return None
    before = session.histories.get(request.thread.previous_message_id)
    if before is None:
        message = f"No thread of this session holds the message '{request.thread.previous_message_id}'."
        raise ApiError(404, message, param="thread", code="thread_not_found")
    return before


def read(service: CompletionService, role: SessionRole, body: bytes) -> MessagesWriter:
    """Check a request and render its prompt.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(MessagesRequest, body)
    if request.max_tokens is None:
        raise invalid("max_tokens", "it is required")
    asked = _asked(request, _before(request, role.session))
    return MessagesWriter(service.prepare(role, asked, "msg_"), request)


def count(service: CompletionService, role: SessionRole, body: bytes) -> Json:
    """Return how many tokens a request's prompt has.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(MessagesRequest, body)
    return {"input_tokens": service.count(role, _asked(request, _before(request, role.session)))}
