"""The body of `/v1/chat/completions`, and how it becomes a completion request."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from agentrl.proxy.api_error import ApiError, invalid, read_body
from agentrl.proxy.completion import OBJECT_SCHEMA, CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.altered_sampling import SamplingRequestBody
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.dialects.legacy_functions import function_call_id, with_tool_calls
from agentrl.proxy.dialects.tools_as_functions import (
    AnyTool,
    CustomFormat,
    OtherTool,
    custom_arguments,
    custom_function,
    left_out,
)

Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]


class _Text(Part):
    type: Literal["text"]
    text: str


class _ImageUrl(Part):
    url: str


class _Image(Part):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _Refusal(Part):
    type: Literal["refusal"]
    refusal: str


_Part = Annotated[_Text | _Image | _Refusal, Field(discriminator="type")]


class _FunctionCall(Part):
    name: str
    arguments: Annotated[str, BeforeValidator(lambda value: json.dumps(value) if isinstance(value, dict) else value)]
    """JSON. Some clients keep it as an object, as chat templates have it."""


class _NamedFunction(Part):
    name: str


class _ToolCall(Part):
    id: str
    type: Literal["function"] = "function"
    function: _FunctionCall

    def to_json(self) -> Json:
        return self.model_dump()


class _CustomCall(Part):
    name: str
    input: str


class _CustomToolCall(Part):
    id: str
    type: Literal["custom"]
    custom: _CustomCall

    def to_json(self) -> Json:
        function = {"name": self.custom.name, "arguments": custom_arguments(self.custom.input)}
        return {"id": self.id, "type": "function", "function": function}


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[_Part], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall | _CustomToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    # vLLM's newer name of it is the other one.
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = (
        None
    )

    prefix: Annotated[bool | None, Field(exclude=True)] = None
    """Whether the reply goes on with this message, the last one."""
    function_call: _FunctionCall | None = None
    """The call of before there were tools; `legacy_functions` says what becomes of it."""

    @model_validator(mode="after")
    def _complete(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with role 'tool' needs 'tool_call_id'")
        if self.role == "function" and self.name is None:
            raise ValueError("a message with role 'function' needs 'name'")
        if self.function_call is not None and (self.tool_calls or self.role != "assistant"):
            raise ValueError("'function_call' belongs to a message with role 'assistant' and without 'tool_calls'")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a message with role '{self.role}' needs 'content'")
        return self

    def to_json(self) -> Json:
        message = self.model_dump(exclude_none=True)
        if self.tool_calls:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.role == "developer":
            message["role"] = "system"
        message["content"] = joined_text(message.get("content") or "")
        return message


def joined_text(content: str | list[Json]) -> str | list[Json]:
    """Message content without images as a string; with images, as it is."""
    if isinstance(content, str) or any(part["type"] == "image_url" for part in content):
        return content
    return "".join(part.get("text") or part.get("refusal", "") for part in content)


class _Function(Part):
    name: str
    description: str | None = None
    parameters: Json | None = None
    # OpenAI then constrains the arguments; here they are what the policy says, and `strict` is not shown to it.
    strict: Annotated[bool | None, Field(exclude=True)] = None


class _Tool(Part):
    type: Literal["function"]
    function: _Function

    def to_json(self) -> Json:
        return self.model_dump(exclude_none=True)


class _Custom(Part):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class _CustomTool(Part):
    type: Literal["custom"]
    custom: _Custom

    def to_json(self) -> Json:
        return custom_function(self.custom.name, self.custom.description, self.custom.format)


def _name(tool: _Tool | _CustomTool) -> str:
    return tool.function.name if isinstance(tool, _Tool) else tool.custom.name


class _NamedTool(Part):
    type: Literal["function", "custom"]
    function: _NamedFunction | None = None
    custom: _NamedFunction | None = None

    @model_validator(mode="after")
    def _complete(self) -> _NamedTool:
        if (self.function or self.custom) is None:
            raise ValueError("a tool choice needs the name of its tool")
        return self

    @property
    def name(self) -> str:
        named = self.function or self.custom
        assert named is not None
        return named.name


class _Allowed(Part):
    mode: Literal["auto", "required"] = "auto"
    tools: list[_NamedTool]


class _AllowedTools(Part):
    """Only some of the tools may be called: the others are not shown."""

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class _StreamOptions(Part):
    include_usage: bool = False


class _PlainFormat(Part):
    type: Literal["text", "json_object"]


class _Schema(Part):
    name: str
    description: str | None = None
    schema_: Annotated[Json | None, Field(alias="schema")] = None
    strict: bool | None = None


class _SchemaFormat(Part):
    type: Literal["json_schema"]
    json_schema: _Schema


class ChatRequest(SamplingRequestBody):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[AnyTool[_Tool, _CustomTool, OtherTool]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | _AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[_Function], Field(fail_fast=True)] | None = None
    function_call: Literal["auto", "none"] | _NamedFunction | None = None
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
    chat_template_kwargs: Json | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    response_format: Annotated[_PlainFormat | _SchemaFormat, Field(discriminator="type")] | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        tools = [tool for tool in self.tools or [] if not isinstance(tool, OtherTool)]
        tools += [_Tool(type="function", function=function) for function in self.functions or []]
        choice = self.tool_choice or "auto"
        if isinstance(self.function_call, _NamedFunction):
            choice = _NamedTool(type="function", function=self.function_call)
        elif self.function_call is not None:
            choice = self.function_call
        if isinstance(choice, _AllowedTools):
            names = {named.name for named in choice.allowed_tools.tools}
            tools = [tool for tool in tools if _name(tool) in names]
            choice = choice.allowed_tools.mode
        return CompletionRequest(
            model=self.model,
            messages=with_tool_calls([message.to_json() for message in self.messages]),
            continues=self.continues,
            tools=[tool.to_json() for tool in tools],
            template_options=self.chat_template_kwargs or {},
            tool_choice=NamedTool(choice.name) if isinstance(choice, _NamedTool) else choice,
            parallel_tool_calls=self.parallel_tool_calls is not False and not self.functions,
            tool_call_ids=[function_call_id(len(self.messages))] if self.functions else [],
            stop=stop_strings(self.stop),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            alterations=self.alterations(),
            choices=self.n or 1,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            json_schema=self._json_schema(),
            ignored=self.ignored(),
        )

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        return [*super().ignored(), *left_out(self.tools or [])]

    @property
    def continues(self) -> bool:
        """Whether the reply goes on with the last message: as vLLM and SGLang, or as DeepSeek and Mistral write it."""
        return bool(self.continue_final_message or self.messages[-1].prefix)

    @property
    def custom_names(self) -> set[str]:
        """Names of the tools that take free text."""
        return {tool.custom.name for tool in self.tools or [] if isinstance(tool, _CustomTool)}

    def _json_schema(self) -> str | None:
        wanted = self.response_format
        if isinstance(wanted, _SchemaFormat):
            schema = wanted.json_schema.schema_
            return OBJECT_SCHEMA if schema is None else json.dumps(schema)
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
    """Check a request body.

    Raises:
        ApiError: 400, which names the field at fault.
    """
    request = read_body(ChatRequest, body)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    if any(message.prefix for message in request.messages[:-1]):
        raise invalid("messages", "'prefix' belongs to the last one")
    if request.add_generation_prompt is not None and request.add_generation_prompt is request.continues:
        problem = "a reply goes on with the last message, or begins anew: it is true without 'continue_final_message', and false with it"
        raise invalid("add_generation_prompt", problem)
    if request.functions and request.tools:
        raise invalid("functions", "it is the form of before there were 'tools'; write all of them as one or the other")
    if isinstance(request.function_call, _NamedFunction) and not request.functions:
        raise ApiError(400, "'function_call' needs 'functions'.", param="function_call", code="invalid_value")
    if request.stream_options and not request.stream:
        raise ApiError(400, "'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
    return request
