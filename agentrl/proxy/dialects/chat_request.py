"""The body of `/v1/chat/completions`, and how it becomes a completion request.

Chat completions of before there were tools have function calls in their messages, which have no ids; data sets hold such conversations:

messages                                  as tools
[2] assistant, function_call {name, ...}  assistant, tool_calls [{id: call_function_2, ...}]
[3] function, name                        tool, tool_call_id: call_function_2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, model_validator

from agentrl.proxy.completion import CompletionRequest, Json
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.dialects.parts import Content, Format, Nested, joined, schema_text
from agentrl.proxy.dialects.sampling import SampledRequest, Tokens
from agentrl.proxy.dialects.tools import ToolsRequest, called, custom_arguments
from agentrl.proxy.errors import ApiError, invalid, read_body


class _FunctionCall(Part):
    name: str
    arguments: str


class _ToolCall(_FunctionCall, Nested):
    id: str
    type: Literal["function"] = "function"

    def to_json(self) -> Json:
        return called(self.id, self.name, self.arguments)


class _CustomCall(Nested):
    id: str
    type: Literal["custom"]
    name: str
    input: str

    def to_json(self) -> Json:
        return called(self.id, self.name, custom_arguments(self.input))


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall | _CustomCall], Field(fail_fast=True)] | None = None
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
        message = self.model_dump(exclude_none=True, exclude={"prefix", "content", "tool_calls", "function_call"})
        if self.tool_calls is not None:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.role == "developer":
            message["role"] = "system"
        return {**message, "content": joined(self.content or "")}


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
