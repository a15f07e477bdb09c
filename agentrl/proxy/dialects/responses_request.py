"""The body of `/v1/responses`, and how its items become messages.

message                          a message of its role
reasoning, message, function_call, function_call, ...    one assistant message: what one response said
function_call_output             a tool message
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl.proxy.api_error import ApiError, invalid, read_body
from agentrl.proxy.completion import OBJECT_SCHEMA, CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.chat_request import Tokens, joined_text


class _Lenient(BaseModel):
    # Clients send items back as they got them, with ids, statuses and annotations that mean nothing here.
    model_config = ConfigDict(extra="ignore")


class _Text(_Lenient):
    type: Literal["input_text", "output_text"]
    text: str

    def part(self) -> Json:
        return {"type": "text", "text": self.text}


class _Refusal(_Lenient):
    type: Literal["refusal"]
    refusal: str

    def part(self) -> Json:
        return {"type": "text", "text": self.refusal}


class _Image(_Lenient):
    type: Literal["input_image"]
    image_url: str

    def part(self) -> Json:
        return {"type": "image_url", "image_url": {"url": self.image_url}}


_Content = (
    str | Annotated[list[Annotated[_Text | _Refusal | _Image, Field(discriminator="type")]], Field(fail_fast=True)]
)


class _Message(_Lenient):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _FunctionCall(_Lenient):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _FunctionCallOutput(_Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: _Content


class _ReasoningText(_Lenient):
    text: str


class _Reasoning(_Lenient):
    type: Literal["reasoning"]
    content: Annotated[list[_ReasoningText], Field(fail_fast=True)] | None = None


_Item = _Message | _FunctionCall | _FunctionCallOutput | _Reasoning


class _Tool(_Lenient):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Json | None = None

    def to_json(self) -> Json:
        function = self.model_dump(exclude_none=True, exclude={"type"})
        return {"type": "function", "function": function}


class _NamedTool(BaseModel):
    type: Literal["function"]
    name: str


class _PlainFormat(BaseModel):
    type: Literal["text", "json_object"]


class _SchemaFormat(BaseModel):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[Json, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class _TextSettings(BaseModel):
    format: Annotated[_PlainFormat | _SchemaFormat, Field(discriminator="type")] = _PlainFormat(type="text")
    verbosity: str | None = None


class ResponsesRequest(BaseModel):
    """OpenAI's request, as far as it is supported. Any other field is refused by name."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: str | Annotated[list[_Item], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: _TextSettings = _TextSettings()

    # These only label a request, or are supported at their neutral value alone.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    reasoning: Json | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    stream_options: Json | None = None

    def to_completion_request(self, before: Sequence[Json]) -> CompletionRequest:
        """Return the question in every dialect's form; `before` is the conversation that it goes on from."""
        choice = self.tool_choice or "auto"
        wanted = self.text.format
        schema = json.dumps(wanted.schema_) if isinstance(wanted, _SchemaFormat) else None
        if wanted.type == "json_object":
            schema = OBJECT_SCHEMA
        messages = [*before, *self._messages()]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return CompletionRequest(
            model=self.model,
            messages=messages,
            tools=[tool.to_json() for tool in self.tools or []],
            tool_choice=NamedTool(choice.name) if isinstance(choice, _NamedTool) else choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            json_schema=schema,
        )

    def _messages(self) -> list[Json]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[Json] = []
        spoken: Json | None = None  # the assistant message that the next item may belong to
        for item in self.input:
            match item:
                case _Message(role="assistant"):
                    if spoken is None or spoken["content"] or "tool_calls" in spoken:
                        spoken = {"role": "assistant", "content": ""}
                        messages.append(spoken)
                    spoken["content"] = _content(item.content)
                case _FunctionCall():
                    if spoken is None:
                        spoken = {"role": "assistant", "content": ""}
                        messages.append(spoken)
                    function = {"name": item.name, "arguments": item.arguments}
                    spoken.setdefault("tool_calls", []).append(
                        {"id": item.call_id, "type": "function", "function": function}
                    )
                case _Reasoning():
                    spoken = {"role": "assistant", "content": ""}
                    thought = "".join(part.text for part in item.content or [])
                    if thought:
                        spoken["reasoning_content"] = thought
                    messages.append(spoken)
                case _FunctionCallOutput():
                    spoken = None
                    messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
                case _Message():
                    spoken = None
                    role = "system" if item.role == "developer" else item.role
                    messages.append({"role": role, "content": _content(item.content)})
        return messages


def _content(content: Any) -> str | list[Json]:
    return content if isinstance(content, str) else joined_text([part.part() for part in content])


def parse_request(body: bytes) -> ResponsesRequest:
    """Check a request body. Raises ApiError 400 that names the field at fault."""
    request = read_body(ResponsesRequest, body)
    if not isinstance(request.input, str):
        answered = {item.call_id for item in request.input if isinstance(item, _FunctionCallOutput)}
        called = {item.call_id for item in request.input if isinstance(item, _FunctionCall)}
        if not request.previous_response_id and (unknown := answered - called):
            raise invalid("input", f"it answers the function call {unknown.pop()!r}, which it does not hold")
    return request


def unknown_response(response_id: str) -> ApiError:
    """Return the refusal of an id that this session never gave out."""
    message = f"Previous response with id '{response_id}' not found."
    return ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
