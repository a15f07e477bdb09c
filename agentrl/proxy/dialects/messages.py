"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from dataclasses import replace

from agentrl.proxy.api_error import ApiError, read_body
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion, Send
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.dialects.messages_request import CountRequest, MessagesRequest, shown_id
from agentrl.proxy.prefill import joined
from agentrl.proxy.session import Conversation, Session, SessionRole
from agentrl.proxy.tool_calls import readable_part, values_so_far

_SIGNATURE = "YWdlbnRybA=="
"""Clients send a thought back as one only if it is signed, and as a text of their own otherwise. Nothing reads it here."""


class Messages:
    """The endpoints."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service

    def prepare(self, role: SessionRole, body: bytes) -> tuple[MessagesRequest, PreparedCompletion]:
        """Check a request and render its prompt.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = read_body(MessagesRequest, body)
        before = _before(request, role.session)
        call = self._service.prepare(role, _going_on(request, before), "msg_")
        call.before = before
        return request, call

    def count(self, role: SessionRole, body: bytes) -> Json:
        """Return how many tokens a request's prompt has.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = read_body(CountRequest, body)
        asked = _going_on(request, _before(request, role.session))
        return {"input_tokens": self._service.count(role, asked)}

    async def complete(self, request: MessagesRequest, call: PreparedCompletion) -> Json:
        """Return the whole reply as one `message`."""
        reply = await self._service.reply(call)
        _remember(request, call, reply)
        return {**_head(call), "content": _content(reply), **_ending(reply), "usage": _usage(call, reply)}

    async def stream(self, request: MessagesRequest, call: PreparedCompletion, send: Send) -> None:
        """Send the reply as Anthropic's events, sent as the tokens arrive.

        Raises:
            ApiError: The engine failed, or the episode has ended.
        """
        index, open_kind = -1, ""
        said, text = "", ""

        async def close() -> None:
            nonlocal open_kind
            if open_kind == "thinking":
                await send(_delta(index, {"type": "signature_delta", "signature": _SIGNATURE}))
            if open_kind:
                await send({"type": "content_block_stop", "index": index})
            open_kind = ""

        async def begin(block: Json) -> None:
            nonlocal index, open_kind
            await close()
            index, open_kind = index + 1, block["type"]
            await send({"type": "content_block_start", "index": index, "content_block": block})

        async def emit(delta: Delta) -> None:
            nonlocal said, text
            if (tool := delta.begun_call) is not None and not delta.arguments:
                said = text = ""
                await begin({**_tool_use(tool), "input": {}})
            elif tool is not None or delta.tool_call is not None:
                text += delta.arguments
                shown = _shown_arguments(text, delta.tool_call)
                if piece := shown[len(said) :]:
                    await send(_delta(index, {"type": "input_json_delta", "partial_json": piece}))
                    said = shown
            elif delta.reasoning:
                if open_kind != "thinking":
                    await begin({"type": "thinking", "thinking": "", "signature": ""})
                await send(_delta(index, {"type": "thinking_delta", "thinking": delta.reasoning}))
            else:
                if open_kind != "text":
                    await begin({"type": "text", "text": ""})
                await send(_delta(index, {"type": "text_delta", "text": delta.text}))

        start = {
            **_head(call),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(call, None),
        }
        await send({"type": "message_start", "message": start})
        reply = await self._service.reply(call, 0, emit)
        if index < 0:
            await begin({"type": "text", "text": ""})
        await close()
        _remember(request, call, reply)
        await send({"type": "message_delta", "delta": _ending(reply), "usage": _usage(call, reply)}, whole=True)
        await send({"type": "message_stop"})


def _before(request: CountRequest, session: Session) -> Conversation | None:
    """Return the conversation of the thread that a request goes on with; None: it begins one.

    Raises:
        ApiError: The session has no such thread.
    """
    if request.thread is None or request.thread.type != "continue":
        return None
    before = session.conversations.get(request.thread.previous_message_id)
    if before is None:
        message = f"No thread of this session holds the message '{request.thread.previous_message_id}'."
        raise ApiError(404, message, param="thread", code="thread_not_found")
    return before


def _going_on(request: CountRequest, before: Conversation | None) -> CompletionRequest:
    """Return the request after the conversation that it goes on with, whose `system` and `tools` are those that it began with.

    Raises:
        ApiError: The request has another `system`.
    """
    asked = request.to_completion_request()
    if before is None:
        return asked
    known, added = before.messages(), asked.messages
    if request.system:
        if added[0] not in known[:1]:
            message = "Unsupported 'system': the thread goes on with the one that it began with; leave it out."
            raise ApiError(400, message, param="system", code="unsupported_value")
        added = added[1:]
    return replace(asked, messages=[*known, *added], tools=asked.tools or before.tools)


def _remember(request: MessagesRequest, call: PreparedCompletion, reply: Completion) -> None:
    if request.thread is None:
        return
    before = call.before
    end = -1 if call.request.continues else None
    added = call.request.messages[len(before.messages()) if before else 0 : end]
    said = joined(call.prompt.prefill, reply.message.to_json())
    call.session.conversations[call.id] = Conversation(before, [*added, said], call.request.tools)


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _head(call: PreparedCompletion) -> Json:
    return {"id": call.id, "type": "message", "role": "assistant", "model": call.request.model}


def _content(reply: Completion) -> list[Json]:
    message = reply.message
    blocks: list[Json] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": _SIGNATURE})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content})
    blocks += [{**_tool_use(call), "input": arguments_object(call["function"])} for call in message.tool_calls]
    return blocks


def _tool_use(call: Json) -> Json:
    return {"type": "tool_use", "id": shown_id(call["id"]), "name": call["function"]["name"]}


def arguments_object(function: Json) -> Json:
    """Return the arguments of a call as an object, as Anthropic's and Google's clients get them. The policy may have said something else, or have been cut off."""
    return values_so_far(function["arguments"])


def _shown_arguments(text: str, call: Json | None) -> str:
    """Return what a client is sent of arguments so far, and of those of a whole call: it takes JSON of an object alone, which may be cut off."""
    if text.lstrip().startswith("{"):
        return readable_part(text)
    return json.dumps(arguments_object(call["function"])) if call is not None else ""


def _ending(reply: Completion) -> Json:
    stopped_by = reply.message.stopped_by
    if reply.finish == "tool_calls":
        reason = "tool_use"
    elif stopped_by is not None:
        reason = "stop_sequence"
    else:
        reason = "max_tokens" if reply.finish == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": stopped_by if reason == "stop_sequence" else None}


def _usage(call: PreparedCompletion, reply: Completion | None) -> Json:
    cached = reply.generation.cached_tokens if reply else 0
    return {
        "input_tokens": len(call.prompt.input_ids) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(reply.generation.output_ids) if reply else 0,
    }
