"""The body of `/v1/responses`, and how its items become messages.

message                          a message of its role
reasoning, message, function_call, function_call, ...    one assistant message: what one response said
function_call_output             a tool message
custom_tool_call and its output  the same, of a tool that takes free text
item_reference                   the item of this session that has the id
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from agentrl.proxy.completion import OBJECT_SCHEMA, CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.chat_request import Tokens, joined_text
from agentrl.proxy.dialects.fields import Part, RequestBody
from agentrl.proxy.dialects.tools_as_functions import (
    AnyTool,
    CustomFormat,
    OtherTool,
    custom_arguments,
    custom_function,
    left_out,
)
from agentrl.proxy.errors import ApiError, invalid, read_body


class _Text(Part):
    type: Literal["input_text", "output_text"]
    text: str

    def part(self) -> Json:
        return {"type": "text", "text": self.text}


class _Refusal(Part):
    type: Literal["refusal"]
    refusal: str

    def part(self) -> Json:
        return {"type": "text", "text": self.refusal}


class _Image(Part):
    type: Literal["input_image"]
    image_url: str

    def part(self) -> Json:
        return {"type": "image_url", "image_url": {"url": self.image_url}}


_Content = (
    str | Annotated[list[Annotated[_Text | _Refusal | _Image, Field(discriminator="type")]], Field(fail_fast=True)]
)


class _Message(Part):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _FunctionCall(Part):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str

    def to_json(self) -> Json:
        return _call(self.call_id, shown_name(self.name, self.namespace), self.arguments)


class _CustomToolCall(Part):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str

    def to_json(self) -> Json:
        return _call(self.call_id, shown_name(self.name, self.namespace), custom_arguments(self.input))


def _call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _ToolOutput(Part):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: _Content


class _ReasoningText(Part):
    text: str


class _Reasoning(Part):
    type: Literal["reasoning"]
    content: Annotated[list[_ReasoningText], Field(fail_fast=True)] | None = None


class _ItemReference(Part):
    type: Literal["item_reference"]
    id: str


_Item = _Message | _FunctionCall | _CustomToolCall | _ToolOutput | _Reasoning | _ItemReference


class _Tool(Part):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Json | None = None

    def to_json(self) -> Json:
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"type"})}


class _CustomTool(Part):
    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None

    def to_json(self) -> Json:
        return custom_function(self.name, self.description, self.format)


class _Namespace(Part):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[list[AnyTool[_Tool, _CustomTool, OtherTool]], Field(fail_fast=True)]


@dataclass(frozen=True)
class ShownTool:
    """A tool as its client wrote it, and as the model is shown it."""

    tool: _Tool | _CustomTool
    namespace: str | None = None

    @property
    def name(self) -> str:
        """The name that the model is shown."""
        return shown_name(self.tool.name, self.namespace)

    @property
    def is_custom(self) -> bool:
        """Whether it takes free text."""
        return isinstance(self.tool, _CustomTool)

    def to_json(self) -> Json:
        """Return the function that the model is shown."""
        shown = self.tool.to_json()
        return {**shown, "function": {**shown["function"], "name": self.name}}


def shown_name(name: str, namespace: str | None) -> str:
    """Return the name that the model is shown of a tool in a namespace."""
    return f"{namespace}__{name}" if namespace else name


class _NamedTool(Part):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def shown_name(self) -> str:
        return shown_name(self.name, self.namespace)


class _AllowedTools(Part):
    """Only some of the tools may be called: the others are not shown."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[_NamedTool]


class _PlainFormat(Part):
    type: Literal["text", "json_object"]


class _SchemaFormat(Part):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[Json | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class _TextSettings(Part):
    format: Annotated[_PlainFormat | _SchemaFormat, Field(discriminator="type")] = _PlainFormat(type="text")


class ResponsesRequest(RequestBody):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    input: str | Annotated[list[_Item], Field(fail_fast=True)] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[AnyTool[_Tool, _CustomTool, _Namespace]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | _AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: _TextSettings = _TextSettings()
    store: bool | None = None

    # They only label a request, and the response says them again.
    user: str | None = None
    metadata: dict[str, str] | None = None

    @cached_property
    def shown_tools(self) -> dict[str, ShownTool]:
        """The tools that the model is shown, by the names that it is shown."""
        shown: list[ShownTool] = []
        for tool in self.tools or []:
            if isinstance(tool, _Namespace):
                shown += [ShownTool(one, tool.name) for one in tool.tools if not isinstance(one, OtherTool)]
            elif not isinstance(tool, OtherTool):
                shown.append(ShownTool(tool))
        if isinstance(self.tool_choice, _AllowedTools):
            names = {named.shown_name for named in self.tool_choice.tools}
            shown = [tool for tool in shown if tool.name in names]
        return {tool.name: tool for tool in shown}

    def to_completion_request(self, before: Sequence[Json], referred: Mapping[str, Json]) -> CompletionRequest:
        """Return the request in every dialect's form.

        Args:
            before: the conversation that it goes on from.
            referred: the items that `item_reference` may name, by their ids.

        Raises:
            ApiError: There is nothing to answer, or an item is not known.
        """
        choice = self.tool_choice or "auto"
        wanted = self.text.format
        schema = None
        if wanted.type != "text":
            given = wanted.schema_ if isinstance(wanted, _SchemaFormat) else None
            schema = OBJECT_SCHEMA if given is None else json.dumps(given)
        messages = [*before, *self._messages(referred)]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        if not messages:
            raise invalid("input", "there is nothing to answer")
        if isinstance(choice, _AllowedTools):
            choice = choice.mode
        return CompletionRequest(
            model=self.model,
            messages=messages,
            tools=[tool.to_json() for tool in self.shown_tools.values()],
            tool_choice=NamedTool(choice.shown_name) if isinstance(choice, _NamedTool) else choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            json_schema=schema,
            ignored=self.ignored(),
        )

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        tools = [one for tool in self.tools or [] for one in (tool.tools if isinstance(tool, _Namespace) else [tool])]
        return [*super().ignored(), *left_out(tools)]

    def _messages(self, referred: Mapping[str, Json]) -> list[Json]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        messages: list[Json] = []
        spoken: Json | None = None  # the assistant message that the next item may belong to
        for item in self.input:
            match _resolved(item, referred):
                case _Message(role="assistant") as item:
                    if spoken is None or spoken["content"] or "tool_calls" in spoken:
                        spoken = {"role": "assistant", "content": ""}
                        messages.append(spoken)
                    spoken["content"] = _content(item.content)
                case _FunctionCall() | _CustomToolCall() as item:
                    if spoken is None:
                        spoken = {"role": "assistant", "content": ""}
                        messages.append(spoken)
                    spoken.setdefault("tool_calls", []).append(item.to_json())
                case _Reasoning() as item:
                    spoken = {"role": "assistant", "content": ""}
                    thought = "".join(part.text for part in item.content or [])
                    if thought:
                        spoken["reasoning_content"] = thought
                    messages.append(spoken)
                case _ToolOutput() as item:
                    spoken = None
                    messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
                case _Message() as item:
                    spoken = None
                    role = "system" if item.role == "developer" else item.role
                    messages.append({"role": role, "content": _content(item.content)})
        return messages


_ANY_ITEM: TypeAdapter[_Item] = TypeAdapter(_Item)


def _resolved(item: _Item, referred: Mapping[str, Json]) -> _Item:
    if not isinstance(item, _ItemReference):
        return item
    if item.id not in referred:
        raise invalid("input", f"it refers to the item {item.id!r}, which no stored response of this session holds")
    return _ANY_ITEM.validate_python(referred[item.id])


def _content(content: Any) -> str | list[Json]:
    return content if isinstance(content, str) else joined_text([part.part() for part in content])


def parse_request(body: bytes) -> ResponsesRequest:
    """Check a request body.

    Raises:
        ApiError: 400 that names the field at fault.
    """
    request = read_body(ResponsesRequest, body)
    if not isinstance(request.input, str):
        answered = {item.call_id for item in request.input if isinstance(item, _ToolOutput)}
        called = {item.call_id for item in request.input if isinstance(item, _FunctionCall | _CustomToolCall)}
        refers = request.previous_response_id or any(isinstance(item, _ItemReference) for item in request.input)
        if not refers and (unknown := answered - called):
            raise invalid("input", f"it answers the function call {unknown.pop()!r}, which it does not hold")
    return request


def unknown_response(response_id: str) -> ApiError:
    """Return the refusal of an id that this session never gave out."""
    message = f"Previous response with id '{response_id}' not found."
    return ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
