"""`/v1/chat/completions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Required

from pydantic import AliasChoices, Field
from typing_extensions import TypedDict

from agentrl.proxy.answer import ReadRequest, Writer
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion
from agentrl.proxy.dialects.fields import SampledRequest, Tokens
from agentrl.proxy.dialects.parts import Content, Format, ToolsRequest, function_call, joined, schema_text
from agentrl.proxy.errors import invalid, read_body
from agentrl.proxy.session import Session

_REASONING = AliasChoices("reasoning_content", "reasoning")
"""Its name, and the newer one of vLLM and OpenRouter."""


class _Function(TypedDict):
    name: str
    arguments: str | Json


class _Call(TypedDict):
    id: str
    function: _Function


class _Message(TypedDict, total=False):
    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: Content | None
    name: str | None
    tool_calls: Annotated[list[_Call], Field(fail_fast=True)] | None
    tool_call_id: str | None
    reasoning_content: Annotated[str | None, Field(validation_alias=_REASONING)]
    prefix: bool | None


class ChatRequest(SampledRequest, ToolsRequest):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    max_completion_tokens: Tokens | None = None
    chat_template_kwargs: Json = Field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    response_format: Format | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        sampling = self.sampling()
        sampling["max_tokens"] = self.max_completion_tokens or self.max_tokens
        return CompletionRequest(
            model=self.model,
            messages=[_to_json(place, message) for place, message in enumerate(self.messages)],
            continues=self.continues,
            template_options=self.chat_template_kwargs,
            choices=self.n,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            json_schema=schema_text(self.response_format),
            ignored=self.ignored(),
            **self.calling(),
            **sampling,
        )

    @property
    def continues(self) -> bool:
        """Whether the reply goes on with the last message: as vLLM and SGLang, or as DeepSeek and Mistral write it."""
        return self.continue_final_message or not self.add_generation_prompt or bool(self.messages[-1].get("prefix"))


def _to_json(place: int, sent: _Message) -> Json:
    """Return message number `place` as it is recorded.

    Raises:
        ApiError: It lacks a field.
    """
    role, content = sent["role"], sent.get("content")
    if role == "tool" and sent.get("tool_call_id") is None:
        raise invalid(f"messages.{place}", "a message with role 'tool' needs 'tool_call_id'")
    if role != "assistant" and content is None:
        raise invalid(f"messages.{place}", f"a message with role '{role}' needs 'content'")
    message: Json = {"role": "system" if role == "developer" else role, "content": joined(content or "")}
    message |= {
        name: sent[name] for name in ("name", "tool_call_id", "reasoning_content") if sent.get(name) is not None
    }
    if (calls := sent.get("tool_calls")) is not None:
        message["tool_calls"] = [
            function_call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls
        ]
    return message


class ChoicesWriter(Writer):
    """Write the replies to a request for chat or text completions: both have choices, and chunks of them."""

    framing = "done"
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, calls: Sequence[PreparedCompletion], request: SampledRequest) -> None:
        super().__init__(calls, stream=request.stream)
        self._shows_usage = bool(request.stream_options.include_usage)

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
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": max(reply.generation.cached_tokens for reply in replies)},
            "completion_tokens_details": {"reasoning_tokens": sum(reply.message.reasoning_tokens for reply in replies)},
        }


class ChatWriter(ChoicesWriter):
    """Write replies as `chat.completion`, or `chat.completion.chunk`s."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, calls: Sequence[PreparedCompletion], request: ChatRequest) -> None:
        super().__init__(calls, request)
        self._whole_calls: Counter[int] = Counter()
        """[choice] how many of its tool calls are whole."""

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        choices = [
            {"index": index, "message": reply.message.to_json(), **_ending(reply)}
            for index, reply in enumerate(replies)
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
        if delta.begun_call is not None:
            piece = {"function": {"arguments": delta.arguments}} if delta.arguments else delta.begun_call
            yield self._piece(index, {"tool_calls": [{"index": self._whole_calls[index], **piece}]})
        self._whole_calls[index] += delta.tool_call is not None

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End a choice."""
        yield self._piece(index, {}, **_ending(reply))

    def _piece(self, index: int, delta: Json, **ending: Any) -> Json:
        return self.chunk({"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **ending})


def _ending(reply: Completion) -> Json:
    logprobs = None if reply.logprobs is None else {"content": reply.logprobs, "refusal": None}
    return {"finish_reason": reply.finish, "logprobs": logprobs}


def read(session: Session, body: bytes) -> ReadRequest:
    """Read a request.

    Raises:
        ApiError: A field is wrong.
    """
    request = read_body(ChatRequest, body)
    return [request.to_completion_request()], partial(ChatWriter, request=request)
