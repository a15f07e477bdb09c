"""The body of Anthropic's `/v1/messages`, and how its blocks become messages.

system:     text blocks             a system message, in its place
user:       tool_result blocks      tool messages, each on its own, before the text that follows them
            text, image, document blocks       a user message
assistant:  thinking, text, tool_use blocks    one assistant message; the last message of all is continued

Ids of tool calls begin with `toolu_` here, and with `call_` in the record and in the other dialects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from agentrl.proxy.completion import CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.fields import Part, RequestBody
from agentrl.proxy.dialects.parts import Format, Text, image, joined, schema_text
from agentrl.proxy.dialects.sampling import Tokens, TopK, TopP
from agentrl.proxy.dialects.tools import called, left_out


class _ImageSource(Part):
    type: Literal["base64"]
    media_type: str
    data: str


class _Image(Part):
    type: Literal["image"]
    source: _ImageSource

    def shown(self) -> Json:
        return image(f"data:{self.source.media_type};base64,{self.source.data}")


class _PlainSource(Part):
    type: Literal["text"]
    data: str


class _Document(Part):
    """A document in plain text. One in another form, such as a PDF, is refused: no model here reads it."""

    type: Literal["document"]
    source: _PlainSource
    title: str = ""
    context: str = ""

    def shown(self) -> Json:
        parts = [part for part in (self.title, self.context, self.source.data) if part]
        return {"type": "text", "text": "\n".join(["", *parts, ""])}


_Shown = Annotated[Text | _Image | _Document, Field(discriminator="type")]


class _ToolUse(Part):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json

    def to_json(self) -> Json:
        return called(recorded_id(self.id), self.name, json.dumps(self.input))


class _ToolResult(Part):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[_Shown], Field(fail_fast=True)] = ""

    def to_json(self) -> Json:
        return {"role": "tool", "tool_call_id": recorded_id(self.tool_use_id), "content": joined(self.content)}


class _Thinking(Part):
    type: Literal["thinking"]
    thinking: str


class _RedactedThinking(Part):
    type: Literal["redacted_thinking"]


_Block = Annotated[
    Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking | _RedactedThinking, Field(discriminator="type")
]


class _Message(Part):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_Block], Field(fail_fast=True)]

    def to_json(self) -> list[Json]:
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        shown = [block for block in self.content if isinstance(block, Text | _Image | _Document)]
        if self.role == "assistant":
            return [self._assistant(self.content)]
        results = [block.to_json() for block in self.content if isinstance(block, _ToolResult)]
        return [*results, {"role": self.role, "content": joined(shown)}] if shown or not results else results

    @staticmethod
    def _assistant(blocks: Sequence[_Block]) -> Json:
        message: Json = {"role": "assistant", "content": joined([b for b in blocks if isinstance(b, Text)])}
        if thought := "".join(b.thinking for b in blocks if isinstance(b, _Thinking)):
            message["reasoning_content"] = thought
        if calls := [b.to_json() for b in blocks if isinstance(b, _ToolUse)]:
            message["tool_calls"] = calls
        return message


class _Tool(Part):
    type: str = "custom"
    name: str = ""
    description: str | None = None
    input_schema: Json = Field(default_factory=dict)

    def to_json(self) -> Json:
        described = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.input_schema}}


class _ToolChoice(Part):
    type: Literal["auto", "any", "none", "tool"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class _OutputConfig(Part):
    format: Format | None = None


class _Thread(Part):
    """A conversation that the session holds, so that its client sends only what is new."""

    type: Literal["create", "continue"]
    previous_message_id: str = ""


class MessagesRequest(RequestBody):
    """Anthropic's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[Text], Field(fail_fast=True)] | None = None
    tools: list[_Tool] = Field(default_factory=list, fail_fast=True)
    tool_choice: _ToolChoice = _ToolChoice(type="auto")
    thread: _Thread | None = None
    max_tokens: Tokens | None = None
    """How long the reply may be; where tokens are counted, it says nothing."""
    stop_sequences: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list, fail_fast=True)
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    output_config: _OutputConfig = _OutputConfig()
    output_format: Format | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        messages = [message for said in self.messages for message in said.to_json()]
        if self.system:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        choice = self.tool_choice
        named = NamedTool(choice.name)
        return CompletionRequest(
            model=self.model,
            messages=messages,
            continues=messages[-1]["role"] == "assistant",
            tools=[tool.to_json() for tool in self.tools if tool.type == "custom"],
            tool_choice=named if choice.type == "tool" else "required" if choice.type == "any" else choice.type,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            stop=self.stop_sequences,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            alterations={"top_k": self.top_k or -1},
            json_schema=schema_text(self.output_config.format or self.output_format),
            ignored=self.ignored(),
        )

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        return [*super().ignored(), *left_out(tool.type for tool in self.tools if tool.type != "custom")]


def shown_id(call_id: str) -> str:
    """Return the id of a tool call as Anthropic's clients know it."""
    return f"toolu_{call_id.removeprefix('call_')}" if call_id.startswith("call_") else call_id


def recorded_id(tool_use_id: str) -> str:
    """Return the id of a tool call as it is recorded, from what `shown_id` made of it."""
    return f"call_{tool_use_id.removeprefix('toolu_')}" if tool_use_id.startswith("toolu_") else tool_use_id
