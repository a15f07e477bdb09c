"""The body of `/v1/responses`, and how its items become messages.

message                          a message of its role
reasoning, message, function_call, function_call, ...    one assistant message: what one response said
function_call_output             a tool message
custom_tool_call and its output  the same, of a tool that takes free text
item_reference                   the item of this session that has the id
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from agentrl.proxy.completion import CompletionRequest, Json
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.dialects.parts import Content, Format, Text, joined, schema_text
from agentrl.proxy.dialects.sampling import Temperature, Tokens, TopP
from agentrl.proxy.dialects.tools import Call, ToolsRequest
from agentrl.proxy.errors import invalid


class _Message(Part):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class _Call(Call):
    type: Literal["function_call", "custom_tool_call"]


class _ToolOutput(Part):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


class _Reasoning(Part):
    type: Literal["reasoning"]
    content: list[Text] = Field(default_factory=list, fail_fast=True)


class _ItemReference(Part):
    type: Literal["item_reference"]
    id: str


_Item = _Message | _Call | _ToolOutput | _Reasoning | _ItemReference
_ANY_ITEM: TypeAdapter[_Item] = TypeAdapter(_Item)


class _TextSettings(Part):
    format: Format = Format(type="text")


class ResponsesRequest(ToolsRequest):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    input: str | Annotated[list[_Item], Field(fail_fast=True)] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool = False
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: _TextSettings = _TextSettings()
    store: bool = True

    # They only label a request, and the response says them again.
    user: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)

    def to_completion_request(self, before: Sequence[Json], referred: Mapping[str, Json]) -> CompletionRequest:
        """Return the request in every dialect's form.

        Args:
            before: the conversation that it goes on from.
            referred: the items that `item_reference` may name, by their ids.

        Raises:
            ApiError: There is nothing to answer, or an item is not known.
        """
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = [*instructions, *before, *self._messages(referred)]
        if not messages:
            raise invalid("input", "there is nothing to answer")
        return CompletionRequest(
            model=self.model,
            messages=messages,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            json_schema=schema_text(self.text.format),
            ignored=self.ignored(),
            **self.calling(),
        )

    def _messages(self, referred: Mapping[str, Json]) -> list[Json]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        messages: list[Json] = []
        spoken: Json | None = None  # the assistant message that the next item may belong to

        def begin() -> Json:
            messages.append({"role": "assistant", "content": ""})
            return messages[-1]

        for item in self.input:
            match _resolved(item, referred):
                case _Message(role="assistant") as item:
                    if spoken is None or spoken["content"] or "tool_calls" in spoken:
                        spoken = begin()
                    spoken["content"] = joined(item.content)
                case _Call() as item:
                    spoken = spoken or begin()
                    spoken.setdefault("tool_calls", []).append(item.to_json())
                case _Reasoning() as item:
                    spoken = begin()
                    if thought := joined(item.content):
                        spoken["reasoning_content"] = thought
                case _ToolOutput() as item:
                    spoken = None
                    messages.append({"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)})
                case _Message() as item:
                    spoken = None
                    role = "system" if item.role == "developer" else item.role
                    messages.append({"role": role, "content": joined(item.content)})
        return messages


def _resolved(item: _Item, referred: Mapping[str, Json]) -> _Item:
    if not isinstance(item, _ItemReference):
        return item
    if item.id not in referred:
        raise invalid("input", f"it refers to the item {item.id!r}, which no stored response of this session holds")
    return _ANY_ITEM.validate_python(referred[item.id])
