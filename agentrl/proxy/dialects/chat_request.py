"""The body of `/v1/chat/completions`: what is supported is read, everything else is refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.proxy.api_error import ApiError, invalid, read_body
from agentrl.proxy.completion import OBJECT_SCHEMA, CompletionRequest, Json, NamedTool

Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _ImageUrl(BaseModel):
    url: str


class _Image(BaseModel):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _Refusal(BaseModel):
    type: Literal["refusal"]
    refusal: str


_Part = Annotated[_Text | _Image | _Refusal, Field(discriminator="type")]


class _FunctionCall(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: _FunctionCall


class _Message(BaseModel):
    # Clients send replies back as they got them, with fields (refusal, annotations, audio: null) that mean nothing here.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_Part], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with role 'tool' needs 'tool_call_id'")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a message with role '{self.role}' needs 'content'")
        return self

    def to_json(self) -> Json:
        message = self.model_dump(exclude_none=True)
        if self.role == "developer":
            message["role"] = "system"
        message["content"] = joined_text(message.get("content") or "")
        return message


def joined_text(content: str | list[Json]) -> str | list[Json]:
    """Message content without images as a string; with images, as it is."""
    if isinstance(content, str) or any(part["type"] == "image_url" for part in content):
        return content
    return "".join(part.get("text") or part.get("refusal", "") for part in content)


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: Json | None = None
    # OpenAI then constrains the arguments; here they are what the policy says, and `strict` is not shown to it.
    strict: Annotated[bool | None, Field(exclude=True)] = None


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _NamedFunction(BaseModel):
    name: str


class _NamedTool(BaseModel):
    type: Literal["function"]
    function: _NamedFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class _PlainFormat(BaseModel):
    type: Literal["text", "json_object"]


class _Schema(BaseModel):
    name: str
    description: str | None = None
    schema_: Annotated[Json, Field(alias="schema")]
    strict: bool | None = None


class _SchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: _Schema


class ChatRequest(BaseModel):
    """OpenAI's request, as far as it is supported. Any other field is refused by name."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    seed: Seed | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None

    response_format: Annotated[_PlainFormat | _SchemaFormat, Field(discriminator="type")] | None = None

    # These only label a request, or are supported at their neutral value alone.
    modalities: list[Literal["text"]] | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: Literal[False] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the question in every dialect's form."""
        choice = self.tool_choice or "auto"
        return CompletionRequest(
            model=self.model,
            messages=[message.to_json() for message in self.messages],
            tools=[tool.model_dump(exclude_none=True) for tool in self.tools or []],
            tool_choice=NamedTool(choice.function.name) if isinstance(choice, _NamedTool) else choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            stop=stop_strings(self.stop),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            choices=self.n or 1,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            json_schema=self._json_schema(),
        )

    def _json_schema(self) -> str | None:
        wanted = self.response_format
        if isinstance(wanted, _SchemaFormat):
            return json.dumps(wanted.json_schema.schema_)
        return OBJECT_SCHEMA if wanted is not None and wanted.type == "json_object" else None


def stop_strings(stop: str | list[str] | None) -> list[str]:
    """Return the stop strings, as a list.

    Raises:
        ApiError: It is empty.
    """
    strings = [stop] if isinstance(stop, str) else stop or []
    if not all(strings):
        raise invalid("stop", "a stop string is empty")
    return strings


def parse_request(body: bytes) -> ChatRequest:
    """Check a request body. Raises ApiError 400 that names the field at fault."""
    request = read_body(ChatRequest, body)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    if request.stream_options and not request.stream:
        raise ApiError(400, "'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
    return request
