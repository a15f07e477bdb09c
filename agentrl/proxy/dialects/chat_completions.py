"""`/v1/chat/completions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, model_validator

from agentrl.proxy.answer import Writer
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.dialects.parts import Content, Format, joined, schema_text
from agentrl.proxy.dialects.sampling import SampledRequest, Tokens
from agentrl.proxy.dialects.tools import Call, ToolsRequest
from agentrl.proxy.errors import read_body
from agentrl.proxy.session import SessionRole

_REASONING = AliasChoices("reasoning_content", "reasoning")
"""Its name, and the newer one of vLLM and OpenRouter."""


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: Annotated[str | None, Field(validation_alias=_REASONING)] = None
    prefix: bool | None = None
    """Whether the reply goes on with this message, where it is the last one."""

    @model_validator(mode="after")
    def _complete(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with role 'tool' needs 'tool_call_id'")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a message with role '{self.role}' needs 'content'")
        return self

    def to_json(self) -> Json:
        role = "system" if self.role == "developer" else self.role
        message: Json = {"role": role, "content": joined(self.content or "")}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls is not None:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return message


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
            messages=[message.to_json() for message in self.messages],
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
        return self.continue_final_message or not self.add_generation_prompt or bool(self.messages[-1].prefix)


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


def read(service: CompletionService, role: SessionRole, body: bytes) -> ChatWriter:
    """Check a request and render its prompt.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(ChatRequest, body)
    return ChatWriter([service.prepare(role, request.to_completion_request(), "chatcmpl-")], request)
