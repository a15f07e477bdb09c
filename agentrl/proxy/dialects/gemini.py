"""Google's `models/NAME:generateContent`, `:streamGenerateContent` and `:countTokens`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion, Send
from agentrl.proxy.completion_service import CompletionService, all_of
from agentrl.proxy.dialects.gemini_request import CountTokensRequest, GenerateRequest
from agentrl.proxy.dialects.messages import arguments_object
from agentrl.proxy.errors import read_body
from agentrl.proxy.session import SessionRole

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")


def called(path: str) -> tuple[str, str] | None:
    """Return the model and the method that a path calls; None for a path of another kind."""
    found = _PATH.fullmatch(path)
    return (found[1], found[2]) if found else None


@dataclass(frozen=True)
class Asked:
    """A request, and how its reply comes."""

    body: GenerateRequest
    stream: bool


class GenerateContent:
    """The endpoint of one model's name."""

    def __init__(self, service: CompletionService, model: str, method: str) -> None:
        self._service = service
        self._model = model
        self._streams = method == "streamGenerateContent"

    def prepare(self, role: SessionRole, body: bytes) -> tuple[Asked, PreparedCompletion]:
        """Check a request and render its prompt.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = read_body(GenerateRequest, body)
        call = self._service.prepare(role, request.to_completion_request(self._model), "resp_")
        return Asked(request, self._streams), call

    def count(self, role: SessionRole, body: bytes) -> Json:
        """Return how many tokens a request's prompt has.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = read_body(CountTokensRequest, body).counted()
        return {"totalTokens": self._service.count(role, request.to_completion_request(self._model))}

    async def complete(self, request: Asked, call: PreparedCompletion) -> Json:
        """Return the whole reply as one `GenerateContentResponse`."""
        count = call.request.choices
        candidates: list[Json] = [{}] * count
        replies: list[Completion] = []

        async def one(index: int) -> None:
            reply = await self._service.reply(call, index)
            replies.append(reply)
            candidates[index] = _candidate(index, _parts(request, reply), reply)

        await all_of(one, count)
        return _response(call, candidates, replies)

    async def stream(self, request: Asked, call: PreparedCompletion, send: Send) -> None:
        """Send the reply as `GenerateContentResponse`s, sent as the tokens arrive.

        Raises:
            ApiError: The engine failed, or the episode has ended.
        """
        count, ended = call.request.choices, 0
        replies: list[Completion] = []

        async def one(index: int) -> None:
            nonlocal ended

            async def emit(delta: Delta) -> None:
                if delta.begun_call is not None:
                    return  # a part is a whole call
                if delta.tool_call is not None:
                    part = _call_part(delta.tool_call)
                elif delta.reasoning:
                    part = {"text": delta.reasoning, "thought": True}
                else:
                    part = {"text": delta.text}
                if request.body.shows_thoughts or not part.get("thought"):
                    await send(_response(call, [_candidate(index, [part])], []))

            reply = await self._service.reply(call, index, emit)
            replies.append(reply)
            ended += 1
            last = _response(call, [_candidate(index, [{"text": ""}], reply)], replies)
            await send(last, whole=ended == count)

        await all_of(one, count)


def _parts(request: Asked, reply: Completion) -> list[Json]:
    message = reply.message
    parts: list[Json] = []
    if message.reasoning and request.body.shows_thoughts:
        parts.append({"text": message.reasoning, "thought": True})
    if message.content or not message.tool_calls:
        parts.append({"text": message.content})
    return parts + [_call_part(call) for call in message.tool_calls]


def _call_part(call: Json) -> Json:
    function = call["function"]
    return {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments_object(function)}}


def _candidate(index: int, parts: list[Json], reply: Completion | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": index}
    if reply is not None:
        candidate["finishReason"] = "MAX_TOKENS" if reply.finish == "length" else "STOP"
    return candidate


def _response(call: PreparedCompletion, candidates: list[Json], replies: Sequence[Completion]) -> Json:
    prompt, output = len(call.prompt.input_ids), sum(len(reply.generation.output_ids) for reply in replies)
    thought = sum(reply.message.reasoning_tokens for reply in replies)
    usage: Json = {"promptTokenCount": prompt, "totalTokenCount": prompt + output}
    if replies:
        usage["candidatesTokenCount"] = output - thought
    if thought:
        usage["thoughtsTokenCount"] = thought
    if cached := max((reply.generation.cached_tokens for reply in replies), default=0):
        usage["cachedContentTokenCount"] = cached
    return {
        "candidates": candidates,
        "usageMetadata": usage,
        "modelVersion": call.request.model,
        "responseId": call.id,
    }
