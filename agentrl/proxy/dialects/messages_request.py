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
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from agentrl.proxy.completion import OBJECT_SCHEMA, Alterations, CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.altered_sampling import TopK
from agentrl.proxy.dialects.chat_request import Tokens, joined_text
from agentrl.proxy.dialects.fields import CHANGES, PROMPT, Part, RequestBody
from agentrl.proxy.dialects.tools_as_functions import OtherTool, left_out


class _Text(Part):
    type: Literal["text"]
    text: str


class _Base64Source(Part):
    type: Literal["base64"]
    media_type: str
    data: str


class _UrlSource(Part):
    type: Literal["url"]
    url: str


class _Image(Part):
    type: Literal["image"]
    source: Annotated[_Base64Source | _UrlSource, Field(discriminator="type")]

    @property
    def url(self) -> str:
        source = self.source
        return source.url if isinstance(source, _UrlSource) else f"data:{source.media_type};base64,{source.data}"


class _PlainSource(Part):
    type: Literal["text"]
    data: str


class _ContentSource(Part):
    type: Literal["content"]
    content: str | Annotated[list[_Text], Field(fail_fast=True)]


class _Document(Part):
    """A document in text. One in another form, such as a PDF, is refused: no model here reads it."""

    type: Literal["document"]
    source: Annotated[_PlainSource | _ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        """The text that the model is shown of it."""
        source = self.source
        if isinstance(source, _PlainSource):
            content = source.data
        elif isinstance(source.content, str):
            content = source.content
        else:
            content = "".join(block.text for block in source.content)
        return "\n".join(["", *(part for part in (self.title, self.context, content) if part), ""])


_Shown = Annotated[_Text | _Image | _Document, Field(discriminator="type")]


class _ToolUse(Part):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class _ToolResult(Part):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[_Shown], Field(fail_fast=True)] = ""
    is_error: bool = False


class _Thinking(Part):
    type: Literal["thinking"]
    thinking: str


class _RedactedThinking(Part):
    type: Literal["redacted_thinking"]


_Block = Annotated[
    _Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking | _RedactedThinking, Field(discriminator="type")
]


class _Message(Part):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_Block], Field(fail_fast=True)]

    def to_json(self) -> list[Json]:
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        if self.role == "system":
            return [{"role": "system", "content": _joined([b for b in self.content if isinstance(b, _Text)])}]
        return self._assistant() if self.role == "assistant" else self._user(self.content)

    def _assistant(self) -> list[Json]:
        assert not isinstance(self.content, str)
        message: Json = {"role": "assistant", "content": _joined([b for b in self.content if isinstance(b, _Text)])}
        if thought := "".join(b.thinking for b in self.content if isinstance(b, _Thinking)):
            message["reasoning_content"] = thought
        calls = [
            {
                "id": recorded_id(b.id),
                "type": "function",
                "function": {"name": b.name, "arguments": json.dumps(b.input)},
            }
            for b in self.content
            if isinstance(b, _ToolUse)
        ]
        return [{**message, "tool_calls": calls} if calls else message]

    @staticmethod
    def _user(blocks: list[_Block]) -> list[Json]:
        results = [b for b in blocks if isinstance(b, _ToolResult)]
        messages: list[Json] = [
            {
                "role": "tool",
                "tool_call_id": recorded_id(b.tool_use_id),
                "content": b.content if isinstance(b.content, str) else _joined(b.content),
            }
            for b in results
        ]
        rest = [b for b in blocks if isinstance(b, _Text | _Image | _Document)]
        if rest or not results:
            messages.append({"role": "user", "content": _joined(rest)})
        return messages


class _Tool(Part):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Json

    def to_json(self) -> Json:
        function: Json = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "custom" if kind in (None, "custom") else "other"


_AnyTool = Annotated[Annotated[_Tool, Tag("custom")] | Annotated[OtherTool, Tag("other")], Discriminator(_kind)]


class _ToolChoice(Part):
    type: Literal["auto", "any", "none", "tool"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class _SchemaFormat(Part):
    type: Literal["json_schema"]
    schema_: Annotated[Json | None, Field(alias="schema")] = None


class _OutputConfig(Part):
    format: _SchemaFormat | None = None


class _Thread(Part):
    """A conversation that the session holds, so that its client sends only what is new."""

    type: Literal["create", "continue"]
    previous_message_id: str = ""


class CountRequest(RequestBody):
    """`/v1/messages/count_tokens`: a request whose prompt is counted. How its reply would be sampled changes nothing."""

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[_Text], Field(fail_fast=True)] | None = None
    tools: Annotated[list[_AnyTool], Field(fail_fast=True)] | None = None
    tool_choice: _ToolChoice | None = None
    thread: _Thread | None = None

    refused: ClassVar = PROMPT

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        messages = [message for said in self.messages for message in said.to_json()]
        if self.system:
            system = self.system if isinstance(self.system, str) else _joined(self.system)
            messages.insert(0, {"role": "system", "content": system})
        choice = self.tool_choice or _ToolChoice(type="auto")
        named = NamedTool(choice.name)
        return CompletionRequest(
            model=self.model,
            messages=messages,
            continues=messages[-1]["role"] == "assistant",
            tools=[tool.to_json() for tool in self.tools or [] if isinstance(tool, _Tool)],
            tool_choice=named if choice.type == "tool" else "required" if choice.type == "any" else choice.type,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            ignored=self.ignored(),
        )

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        return [*super().ignored(), *left_out(self.tools or [])]


class MessagesRequest(CountRequest):
    """Anthropic's request; `RequestBody` says what becomes of a field that is not here."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    output_config: _OutputConfig | None = None
    output_format: _SchemaFormat | None = None

    refused: ClassVar = CHANGES

    def to_completion_request(self) -> CompletionRequest:
        """Return the request in every dialect's form."""
        wanted = (self.output_config.format if self.output_config else None) or self.output_format
        schema = None
        if wanted is not None:
            schema = OBJECT_SCHEMA if wanted.schema_ is None else json.dumps(wanted.schema_)
        return replace(
            super().to_completion_request(),
            temperature=self.temperature,
            top_p=self.top_p,
            alterations=Alterations(top_k=self.top_k or -1),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or [],
            json_schema=schema,
        )


def shown_id(call_id: str) -> str:
    """Return the id of a tool call as Anthropic's clients know it."""
    return f"toolu_{call_id.removeprefix('call_')}" if call_id.startswith("call_") else call_id


def recorded_id(tool_use_id: str) -> str:
    """Return the id of a tool call as it is recorded, from what `shown_id` made of it."""
    return f"call_{tool_use_id.removeprefix('toolu_')}" if tool_use_id.startswith("toolu_") else tool_use_id


def _joined(blocks: Sequence[_Text | _Image | _Document]) -> str | list[Json]:
    return joined_text(
        [
            {"type": "image_url", "image_url": {"url": b.url}}
            if isinstance(b, _Image)
            else {"type": "text", "text": b.text}
            for b in blocks
        ]
    )
