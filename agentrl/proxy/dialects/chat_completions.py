"""`/v1/chat/completions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from agentrl.proxy.answer import Writer
from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.dialects.chat_request import ChatRequest, parse_request
from agentrl.proxy.dialects.sampling import SampledRequest
from agentrl.proxy.session import SessionRole


class ChoicesWriter(Writer):
    """Write the replies to a request for chat or text completions: both have choices, and chunks of them."""

    framing = "done"
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, calls: Sequence[PreparedCompletion], request: SampledRequest) -> None:
        super().__init__(calls, stream=bool(request.stream))
        self._shows_usage = request.stream_options.include_usage

    def completion(self, choices: list[Json], replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        return {**self._head(self.kind), "choices": choices, "usage": self._usage(replies)}

    def chunk(self, choice: Json) -> Json:
        """Return a chunk of the stream."""
        chunk = {**self._head(self.chunk_kind), "choices": [choice]}
        return {**chunk, "usage": None} if self._shows_usage else chunk

    def closing(self, replies: Sequence[Completion]) -> Iterator[Json]:
        """Tell the usage, where it was asked for."""
        if self._shows_usage:
            yield {**self._head(self.chunk_kind), "choices": [], "usage": self._usage(replies)}

    def _head(self, kind: str) -> Json:
        call = self.calls[0]
        return {"id": call.id, "object": kind, "created": call.created, "model": call.request.model}

    def _usage(self, replies: Sequence[Completion]) -> Json:
        prompt = sum(len(call.prompt.input_ids) for call in self.calls)
        output = sum(len(reply.generation.output_ids) for reply in replies)
        counts: Json = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        if cached := max(reply.generation.cached_tokens for reply in replies):
            counts["prompt_tokens_details"] = {"cached_tokens": cached}
        if thought := sum(reply.message.reasoning_tokens for reply in replies):
            counts["completion_tokens_details"] = {"reasoning_tokens": thought}
        return counts


class ChatWriter(ChoicesWriter):
    """Write replies as `chat.completion`, or `chat.completion.chunk`s."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, call: PreparedCompletion, request: ChatRequest) -> None:
        super().__init__([call], request)
        self._request = request
        self._whole_calls: Counter[int] = Counter()
        """[choice] how many of its tool calls are whole."""

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        choices = [
            {"index": index, "message": self._message(reply), **_ending(reply)} for index, reply in enumerate(replies)
        ]
        return self.completion(choices, replies)

    def opening(self) -> Iterator[Json]:
        """Begin each choice."""
        for index in range(len(self.choices)):
            yield self._piece(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what a choice gained."""
        if delta.reasoning:
            yield self._piece(index, {"reasoning_content": delta.reasoning})
        if delta.text:
            yield self._piece(index, {"content": delta.text})
        for piece in self._call_pieces(delta):
            yield self._piece(index, {"tool_calls": [{"index": self._whole_calls[index], **piece}]})
        self._whole_calls[index] += delta.tool_call is not None

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End a choice."""
        yield self._piece(index, {}, **_ending(reply))

    def _piece(self, index: int, delta: Json, **ending: Any) -> Json:
        return self.chunk({"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **ending})

    def _message(self, reply: Completion) -> Json:
        message = reply.message.to_json()
        if "tool_calls" in message:
            message["tool_calls"] = [self._custom(call) or call for call in message["tool_calls"]]
        return message

    def _custom(self, call: Json) -> Json | None:
        """Return a call of a custom tool as its client wrote the tool; None for a call of a function."""
        text = self._request.custom_text(call)
        if text is None:
            return None
        return {"id": call["id"], "type": "custom", "custom": {"name": call["function"]["name"], "input": text}}

    def _call_pieces(self, delta: Delta) -> Iterator[Json]:
        """Return what a client is shown of a growing call. The text of a custom tool comes at once, as it is read from whole arguments."""
        if (begun := delta.begun_call) is not None and self._custom(begun) is None:
            yield {"function": {"arguments": delta.arguments}} if delta.arguments else begun
        elif delta.tool_call is not None and (shown := self._custom(delta.tool_call)) is not None:
            yield {**shown, "custom": {**shown["custom"], "input": ""}}
            yield {"custom": {"input": shown["custom"]["input"]}}


def _ending(reply: Completion) -> Json:
    logprobs = None if reply.logprobs is None else {"content": reply.logprobs, "refusal": None}
    return {"finish_reason": reply.finish, "logprobs": logprobs}


def read(service: CompletionService, role: SessionRole, body: bytes) -> ChatWriter:
    """Check a request and render its prompt.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = parse_request(body)
    return ChatWriter(service.prepare(role, request.to_completion_request(), "chatcmpl-"), request)
