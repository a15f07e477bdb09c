"""`/v1/chat/completions`.

Chat completions of before there were tools have function calls in their messages, which have no ids; data sets hold such conversations:

messages                                  as tools
[2] assistant, function_call {name, ...}  assistant, tool_calls [{id: call_function_2, ...}]
[3] function, name                        tool, tool_call_id: call_function_2
"""

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
from agentrl.proxy.dialects.tools import Arguments, Call, ToolsRequest, called
from agentrl.proxy.errors import ApiError, invalid, read_body
from agentrl.proxy.session import SessionRole


class _FunctionCall(Part):
    name: str
    arguments: Arguments


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    # vLLM's newer name of it is the other one.
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = (
        None
    )
    prefix: bool = False
    """Whether the reply goes on with this message, the last one."""
    function_call: _FunctionCall | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with role 'tool' needs 'tool_call_id'")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a message with role '{self.role}' needs 'content'")
        return self

    def to_json(self) -> Json:
        given = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": self.reasoning_content}
        message: Json = {name: value for name, value in given.items() if value is not None}
        if self.tool_calls is not None:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        role = "system" if self.role == "developer" else self.role
        return {**message, "role": role, "content": joined(self.content or "")}


class ChatRequest(SampledRequest, ToolsRequest):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    max_completion_tokens: Tokens | None = None
    chat_template_kwargs: Json = Field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    response_format: Format | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        sampling = self.sampling()
        sampling["max_tokens"] = self.max_completion_tokens or self.max_tokens
        return CompletionRequest(
            model=self.model,
            messages=_with_tool_calls(self.messages),
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
        return self.continue_final_message or self.messages[-1].prefix


def _with_tool_calls(messages: Sequence[_Message]) -> list[Json]:
    """Return messages with their function calls, and the results of these, as those of tools."""
    written: list[Json] = []
    latest = "call_function_0"
    for index, said in enumerate(messages):
        message = said.to_json()
        if (function := said.function_call) is not None:
            latest = f"call_function_{index}"
            message["tool_calls"] = [called(latest, function.name, function.arguments)]
        elif said.role == "function":
            message = {"role": "tool", "tool_call_id": latest, "content": message["content"]}
        written.append(message)
    return written


def parse_request(body: bytes) -> ChatRequest:
    """Check a request body.

    Raises:
        ApiError: 400, which names the field at fault.
    """
    request = read_body(ChatRequest, body)
    if request.top_logprobs and not request.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    if any(message.prefix for message in request.messages[:-1]):
        raise invalid("messages", "'prefix' belongs to the last one")
    if request.add_generation_prompt is request.continues:
        problem = "a reply goes on with the last message, or begins anew: it is true without 'continue_final_message', and false with it"
        raise invalid("add_generation_prompt", problem)
    return request


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
