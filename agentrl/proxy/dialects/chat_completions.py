"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion, Send
from agentrl.proxy.completion_service import CompletionService, all_of
from agentrl.proxy.dialects.chat_request import ChatRequest, parse_request
from agentrl.proxy.dialects.legacy_functions import with_function_call
from agentrl.proxy.dialects.tools_as_functions import custom_input
from agentrl.proxy.session import SessionRole


class ChatCompletions:
    """The endpoint."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service

    def prepare(self, role: SessionRole, body: bytes) -> tuple[ChatRequest, PreparedCompletion]:
        """Check a request and render its prompt.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = parse_request(body)
        return request, self._service.prepare(role, request.to_completion_request(), "chatcmpl-")

    async def complete(self, request: ChatRequest, call: PreparedCompletion) -> Json:
        """Return the whole reply as one `chat.completion`."""
        count = request.n or 1
        choices: list[Json] = [{}] * count
        replies: list[Completion] = []

        async def one(index: int) -> None:
            reply = await self._service.reply(call, index)
            replies.append(reply)
            choices[index] = {
                "index": index,
                "message": _message(request, reply),
                "finish_reason": _finish(request, reply),
                "logprobs": await self._logprobs(request, call, reply),
            }

        await all_of(one, count)
        return {**_head(call, "chat.completion"), "choices": choices, "usage": usage(call, replies)}

    async def stream(self, request: ChatRequest, call: PreparedCompletion, send: Send) -> None:
        """Send the reply as `chat.completion.chunk`s, sent as the tokens arrive.

        Raises:
            ApiError: The engine failed, or the episode has ended.
        """
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        count, ended = request.n or 1, 0
        replies: list[Completion] = []
        head = _head(call, "chat.completion.chunk")

        async def one(index: int) -> None:
            nonlocal ended
            calls = 0

            async def say(delta: Json, *, whole: bool = False, **extra: Any) -> None:
                choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **extra}
                chunk = {**head, "choices": [choice]}
                await send({**chunk, "usage": None} if wants_usage else chunk, whole=whole)

            async def emit(delta: Delta) -> None:
                nonlocal calls
                if delta.reasoning:
                    await say({"reasoning_content": delta.reasoning})
                if delta.text:
                    await say({"content": delta.text})
                for piece in _call_pieces(request, delta, calls):
                    await say(piece)
                calls += delta.tool_call is not None

            await say({"role": "assistant", "content": ""})
            reply = await self._service.reply(call, index, emit)
            replies.append(reply)
            logprobs = await self._logprobs(request, call, reply)
            ended += 1
            await say({}, whole=ended == count, finish_reason=_finish(request, reply), logprobs=logprobs)

        await all_of(one, count)
        if wants_usage:
            await send({**head, "choices": [], "usage": usage(call, replies)})

    async def _logprobs(self, request: ChatRequest, call: PreparedCompletion, reply: Completion) -> Json | None:
        if not request.logprobs:
            return None
        return {"content": await self._service.logprobs(call, reply.generation), "refusal": None}


def _message(request: ChatRequest, reply: Completion) -> Json:
    message, customs = reply.message.to_json(), request.custom_names
    if request.functions:
        return with_function_call(message)
    if customs and "tool_calls" in message:
        message["tool_calls"] = [_shown_call(call, customs) for call in message["tool_calls"]]
    return message


def _finish(request: ChatRequest, reply: Completion) -> str:
    return "function_call" if request.functions and reply.finish == "tool_calls" else reply.finish


def _call_pieces(request: ChatRequest, delta: Delta, index: int) -> list[Json]:
    """Return what a client is shown of a growing call, which is number `index` of the reply. The text of a custom tool comes at once, as it is read from whole arguments."""
    begun, call = delta.begun_call, delta.tool_call
    piece: Json = {"arguments": delta.arguments}
    if request.functions:
        # It takes the first call alone.
        return [{"function_call": piece if delta.arguments else begun["function"]}] if begun and index == 0 else []
    pieces: list[Json] = []
    if begun is not None and begun["function"]["name"] not in request.custom_names:
        pieces = [{"function": piece} if delta.arguments else begun]
    elif call is not None and (shown := _shown_call(call, request.custom_names))["type"] == "custom":
        custom = shown["custom"]
        pieces = [{**shown, "custom": {**custom, "input": ""}}, {"custom": {"input": custom["input"]}}]
    return [{"tool_calls": [{"index": index, **one}]} for one in pieces]


def _shown_call(call: Json, customs: set[str]) -> Json:
    """Return a tool call as its client wrote the tool."""
    function = call["function"]
    if function["name"] not in customs:
        return call
    custom = {"name": function["name"], "input": custom_input(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


def _head(call: PreparedCompletion, kind: str) -> Json:
    return {"id": call.id, "object": kind, "created": call.created, "model": call.request.model}


def usage(call: PreparedCompletion, replies: Sequence[Completion]) -> Json:
    """OpenAI's `usage` of chat and text completions."""
    prompt, completion = len(call.prompt.input_ids), sum(len(r.generation.output_ids) for r in replies)
    counts: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if cached := max((r.generation.cached_tokens for r in replies), default=0):
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if thought := sum(r.message.reasoning_tokens for r in replies):
        counts["completion_tokens_details"] = {"reasoning_tokens": thought}
    return counts
