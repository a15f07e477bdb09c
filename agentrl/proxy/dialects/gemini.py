"""Google's `models/NAME:generateContent`, `:streamGenerateContent` and `:countTokens`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentrl.proxy.answer import Framing, Writer
from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.gemini_request import GenerateRequest
from agentrl.proxy.errors import read_body
from agentrl.proxy.session import SessionRole
from agentrl.proxy.tool_calls import values_so_far

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")


def called(path: str) -> tuple[str, str] | None:
    """Return the model and the method that a path calls; None for a path of another kind."""
    found = _PATH.fullmatch(path)
    return (found[1], found[2]) if found else None


class ContentWriter(Writer):
    """Write replies as a `GenerateContentResponse`, or as several. A part is a text, or a whole call."""

    def __init__(self, call: PreparedCompletion, framing: Framing | None, *, shows_thoughts: bool) -> None:
        super().__init__([call], stream=framing is not None)
        self.framing = framing or "plain"
        self._shows_thoughts = shows_thoughts
        self._ended: list[Completion] = []

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply: a candidate has the parts that its stream would have."""
        candidates = []
        for index, reply in enumerate(replies):
            parts = [part for delta in SentDeltas().growth(reply.message, final=True) for part in self._parts(delta)]
            candidates.append(_candidate(index, parts or [{"text": ""}], reply))
        return self._response(candidates, replies)

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what a candidate gained."""
        for part in self._parts(delta):
            yield self._response([_candidate(index, [part])], [])

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End a candidate."""
        self._ended.append(reply)
        yield self._response([_candidate(index, [{"text": ""}], reply)], self._ended)

    def _parts(self, delta: Delta) -> Iterator[Json]:
        if (call := delta.tool_call) is not None:
            function = call["function"]
            arguments = values_so_far(function["arguments"])
            yield {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments}}
        elif delta.text:
            yield {"text": delta.text}
        elif delta.reasoning and self._shows_thoughts:
            yield {"text": delta.reasoning, "thought": True}

    def _response(self, candidates: list[Json], replies: Sequence[Completion]) -> Json:
        (call,) = self.calls
        prompt, output = len(call.prompt.input_ids), sum(len(reply.generation.output_ids) for reply in replies)
        thought = sum(reply.message.reasoning_tokens for reply in replies)
        usage: Json = {"promptTokenCount": prompt, "totalTokenCount": prompt + output}
        if replies:
            usage["candidatesTokenCount"] = output - thought
        if thought:
            usage["thoughtsTokenCount"] = thought
        if cached := max((reply.generation.cached_tokens for reply in replies), default=0):
            usage["cachedContentTokenCount"] = cached
        named = {"modelVersion": call.request.model, "responseId": call.id}
        return {"candidates": candidates, "usageMetadata": usage, **named}


def _candidate(index: int, parts: list[Json], reply: Completion | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": index}
    if reply is not None:
        candidate["finishReason"] = "MAX_TOKENS" if reply.finish == "length" else "STOP"
    return candidate


def read(
    model: str, framing: Framing | None, service: CompletionService, role: SessionRole, body: bytes
) -> ContentWriter:
    """Check a request to `model` and render its prompt.

    Args:
        model: the model's name.
        framing: how the events of a stream are written; None: the reply comes whole.
        service: what answers it.
        role: who asks.
        body: its body.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(GenerateRequest, body)
    call = service.prepare(role, request.to_completion_request(model), "resp_")
    return ContentWriter(call, framing, shows_thoughts=request.generation_config.thinking_config.include_thoughts)


def count(model: str, service: CompletionService, role: SessionRole, body: bytes) -> Json:
    """Return how many tokens a request's prompt has.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(GenerateRequest, body)
    counted = request.generate_content_request or request
    return {"totalTokens": service.count(role, counted.to_completion_request(model))}
