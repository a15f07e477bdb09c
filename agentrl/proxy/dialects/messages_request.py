"""The body of Anthropic's `/v1/messages`, and how its blocks become messages.

user:       tool_result blocks      tool messages, each on its own, before the text that follows them
            text, image blocks      a user message
assistant:  thinking, text, tool_use blocks    one assistant message
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl.proxy.completion import CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.chat_request import Tokens, joined_text


class _Lenient(BaseModel):
    # Blocks come with cache_control, citations and signatures, which mean nothing here.
    model_config = ConfigDict(extra="ignore")


class _Text(_Lenient):
    type: Literal["text"]
    text: str


class _Base64Source(_Lenient):
    type: Literal["base64"]
    media_type: str
    data: str


class _UrlSource(_Lenient):
    type: Literal["url"]
    url: str


class _Image(_Lenient):
    type: Literal["image"]
    source: Annotated[_Base64Source | _UrlSource, Field(discriminator="type")]

    @property
    def url(self) -> str:
        source = self.source
        return source.url if isinstance(source, _UrlSource) else f"data:{source.media_type};base64,{source.data}"


class _ToolUse(_Lenient):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class _ToolResult(_Lenient):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[Annotated[_Text | _Image, Field(discriminator="type")]], Field(fail_fast=True)] = ""
    is_error: bool = False


class _Thinking(_Lenient):
    type: Literal["thinking"]
    thinking: str


class _RedactedThinking(_Lenient):
    type: Literal["redacted_thinking"]


_Block = Annotated[_Text | _Image | _ToolUse | _ToolResult | _Thinking | _RedactedThinking, Field(discriminator="type")]


class _Message(BaseModel):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[_Block], Field(fail_fast=True)]

    def to_json(self) -> list[Json]:
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        return self._assistant() if self.role == "assistant" else self._user(self.content)

    def _assistant(self) -> list[Json]:
        assert not isinstance(self.content, str)
        message: Json = {"role": "assistant", "content": _joined([b for b in self.content if isinstance(b, _Text)])}
        if thought := "".join(b.thinking for b in self.content if isinstance(b, _Thinking)):
            message["reasoning_content"] = thought
        calls = [
            {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
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
                "tool_call_id": b.tool_use_id,
                "content": b.content if isinstance(b.content, str) else _joined(b.content),
            }
            for b in results
        ]
        rest = [b for b in blocks if isinstance(b, _Text | _Image)]
        if rest or not results:
            messages.append({"role": "user", "content": _joined(rest)})
        return messages


class _Tool(_Lenient):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Json

    def to_json(self) -> Json:
        function: Json = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "none", "tool"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class CountRequest(BaseModel):
    """`/v1/messages/count_tokens`: the part of a request that makes its prompt."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[_Text], Field(fail_fast=True)] | None = None
    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: _ToolChoice | None = None
    # The policy thinks, or not, as it was trained to.
    thinking: Json | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the question in every dialect's form."""
        messages = [message for said in self.messages for message in said.to_json()]
        if self.system:
            system = self.system if isinstance(self.system, str) else _joined(self.system)
            messages.insert(0, {"role": "system", "content": system})
        choice = self.tool_choice or _ToolChoice(type="auto")
        named = NamedTool(choice.name)
        return CompletionRequest(
            model=self.model,
            messages=messages,
            tools=[tool.to_json() for tool in self.tools or []],
            tool_choice=named if choice.type == "tool" else "required" if choice.type == "any" else choice.type,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
        )


class MessagesRequest(CountRequest):
    """Anthropic's request, as far as it is supported. Any other field is refused by name."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    metadata: Json | None = None
    service_tier: str | None = None

    def to_completion_request(self) -> CompletionRequest:
        """Return the question in every dialect's form."""
        ask = super().to_completion_request()
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return CompletionRequest(**{**vars(ask), **sampling, "stop": self.stop_sequences or []})


def _joined(blocks: list[_Text] | list[_Text | _Image]) -> str | list[Json]:
    return joined_text(
        [
            {"type": "text", "text": b.text}
            if isinstance(b, _Text)
            else {"type": "image_url", "image_url": {"url": b.url}}
            for b in blocks
        ]
    )
