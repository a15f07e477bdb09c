"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

system:     text blocks             a system message, in its place
user:       tool_result blocks      tool messages, each on its own, before the text that follows them
            text, image, document blocks       a user message
assistant:  thinking, text, tool_use blocks    one assistant message; the last message of all is continued

Ids of tool calls begin with `toolu_` here, and with `call_` in the record and in the other dialects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agentrl.proxy.answer import ReadRequest, Writer
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, NamedTool, PreparedCompletion
from agentrl.proxy.dialects.fields import RequestBody, Stop, Tokens, TopK, TopP
from agentrl.proxy.dialects.parts import Format, Text, function_call, function_tool, joined, left_out, schema_text
from agentrl.proxy.errors import ApiError, invalid, read_body
from agentrl.proxy.session import History, Session
from agentrl.proxy.tool_calls import readable_part, values_so_far

_SIGNATURE = "YWdlbnRybA=="
"""Clients send a thought back as one only if it is signed, and as a text of their own otherwise. Nothing reads it here."""


class _ImageSource(TypedDict):
    type: Literal["base64"]
    media_type: str
    data: str


class _Image(TypedDict):
    type: Literal["image"]
    source: _ImageSource


class _PlainSource(TypedDict):
    type: Literal["text"]
    data: str


class _Document(TypedDict):
    """A document in plain text. One in another form, such as a PDF, is refused: no model here reads it."""

    type: Literal["document"]
    source: _PlainSource
    title: NotRequired[str | None]
    context: NotRequired[str | None]


_Shown = Annotated[Text | _Image | _Document, Field(discriminator="type")]


class _ToolUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class _ToolResult(TypedDict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: NotRequired[str | Annotated[list[_Shown], Field(fail_fast=True)] | None]


class _Thinking(TypedDict):
    type: Literal["thinking"]
    thinking: str


_Block = Annotated[Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking, Field(discriminator="type")]


class _Message(TypedDict):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_Block], Field(fail_fast=True)]


def _written(sent: _Message) -> list[Json]:
    """Return the messages that one of Anthropic's stands for: the results of tools in it are each one."""
    message: Json = {"role": sent["role"], "content": sent["content"]}
    if isinstance(sent["content"], str):
        return [message]
    results: list[Json] = []
    shown: list[Json] = []
    block: Any
    for block in sent["content"]:
        match block["type"]:
            case "tool_result":
                content = block.get("content") or ""
                if not isinstance(content, str):
                    content = joined([_part(part) for part in content])
                results.append({"role": "tool", "tool_call_id": recorded_id(block["tool_use_id"]), "content": content})
            case "tool_use":
                call = function_call(recorded_id(block["id"]), block["name"], block["input"])
                message.setdefault("tool_calls", []).append(call)
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + block["thinking"]
            case _:
                shown.append(_part(block))
    message["content"] = joined(shown)
    return results if results and not shown else [*results, message]


def _part(block: Json) -> Json:
    """Return a text, an image or a document as a part with a text, or with the URL of an image."""
    match block:
        case {"type": "image", "source": source}:
            return {"url": f"data:{source['media_type']};base64,{source['data']}"}
        case {"type": "document", "source": source}:
            texts = [text for text in (block.get("title"), block.get("context"), source["data"]) if text]
            return {"text": "\n".join(["", *texts, ""])}
    return block


class _Tool(BaseModel):
    type: str | None = None
    name: str = ""
    description: str | None = None
    input_schema: Json | None = None

    @property
    def is_function(self) -> bool:
        return self.type in (None, "custom")


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _OutputConfig(BaseModel):
    format: Format | None = None


class _Thread(BaseModel):
    """A conversation that the session holds, so that its client sends only what is new."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class MessagesRequest(RequestBody):
    """Anthropic's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[Text], Field(fail_fast=True)] | None = None
    tools: list[_Tool] = Field(default_factory=list, fail_fast=True)
    tool_choice: _ToolChoice = _ToolChoice(type="auto")
    thread: _Thread | None = None
    max_tokens: Tokens | None = None
    stop_sequences: list[Stop] = Field(default_factory=list, fail_fast=True)
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    output_config: _OutputConfig = _OutputConfig()
    output_format: Format | None = None

    def to_completion_request(self, session: Session) -> CompletionRequest:
        """Return the request in every dialect's form: that of a thread has the messages before it, and the tools that it began with.

        Raises:
            ApiError: The session has no such thread, or the request has a `system` of its own.
        """
        before = self._before(session)
        messages = [*before.messages, *(message for said in self.messages for message in _written(said))]
        if self.system:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        functions = [tool for tool in self.tools if tool.is_function]
        tools = [function_tool(tool.name, tool.description, tool.input_schema or {}) for tool in functions]
        choice = self.tool_choice
        named = NamedTool(choice.name or "")
        return CompletionRequest(
            model=self.model,
            messages=messages,
            continues=messages[-1]["role"] == "assistant",
            tools=tools or before.tools,
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
        return [*super().ignored(), *left_out(str(tool.type) for tool in self.tools if not tool.is_function)]

    def _before(self, session: Session) -> History:
        if self.thread is None or self.thread.type == "create":
            return History(())
        if (before := session.histories.get(self.thread.previous_message_id or "")) is None:
            message = f"No thread of this session holds the message '{self.thread.previous_message_id}'."
            raise ApiError(404, message, param="thread", code="thread_not_found")
        if self.system:
            raise invalid("system", "the thread goes on with the one that it began with; leave it out")
        return before


def shown_id(call_id: str) -> str:
    """Return the id of a tool call as Anthropic's clients know it."""
    return f"toolu_{call_id.removeprefix('call_')}" if call_id.startswith("call_") else call_id


def recorded_id(tool_use_id: str) -> str:
    """Return the id of a tool call as it is recorded, from what `shown_id` made of it."""
    return f"call_{tool_use_id.removeprefix('toolu_')}" if tool_use_id.startswith("toolu_") else tool_use_id


class MessagesWriter(Writer):
    """Write a reply as a `message`, or as the events of its blocks: one is open at a time, and is closed when the next begins."""

    framing = "named"

    def __init__(self, calls: Sequence[PreparedCompletion], request: MessagesRequest) -> None:
        super().__init__(calls, stream=request.stream)
        (self._call,) = calls
        self._keeps_thread = request.thread is not None
        self._index = -1
        self._open = ""
        """The type of the block that is open; "": none."""
        self._arguments = ""
        """Of the tool call that is open, as the policy writes them."""
        self._sent_arguments = ""

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        (reply,) = replies
        self._remember(reply)
        return {**self._head(), "content": _content(reply), **_ending(reply), "usage": self._usage(reply)}

    def opening(self) -> Iterator[Json]:
        """Begin the message."""
        start: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(None)}
        yield {"type": "message_start", "message": {**self._head(), **start}}

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what the message gained."""
        if (tool := delta.begun_call) is not None and not delta.arguments:
            self._arguments = self._sent_arguments = ""
            yield from self._begin({**_tool_use(tool), "input": {}})
        elif tool is not None or delta.tool_call is not None:
            self._arguments += delta.arguments
            shown = _shown_arguments(self._arguments, delta.tool_call)
            if piece := shown[len(self._sent_arguments) :]:
                self._sent_arguments = shown
                yield self._piece({"type": "input_json_delta", "partial_json": piece})
        else:
            kind = "thinking" if delta.reasoning else "text"
            if self._open != kind:
                yield from self._begin(_text_block(kind, ""))
            yield self._piece({"type": f"{kind}_delta", kind: delta.reasoning or delta.text})

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End the message."""
        if self._index < 0:
            yield from self._begin(_text_block("text", ""))
        yield from self._close()
        self._remember(reply)
        yield {"type": "message_delta", "delta": _ending(reply), "usage": self._usage(reply)}

    def closing(self, replies: Sequence[Completion]) -> Iterator[Json]:
        """End the stream."""
        yield {"type": "message_stop"}

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._index, self._open = self._index + 1, block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._open == "thinking":
            yield self._piece({"type": "signature_delta", "signature": _SIGNATURE})
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _piece(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _head(self) -> Json:
        return {"id": self._call.id, "type": "message", "role": "assistant", "model": self._call.request.model}

    def _usage(self, reply: Completion | None) -> Json:
        cached = reply.generation.cached_tokens if reply else 0
        return {
            "input_tokens": len(self._call.prompt.input_ids) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(reply.generation.output_ids) if reply else 0,
        }

    def _remember(self, reply: Completion) -> None:
        if self._keeps_thread:
            self._call.keep_history(reply)


def _content(reply: Completion) -> list[Json]:
    message = reply.message
    blocks: list[Json] = []
    if message.reasoning:
        blocks.append(_text_block("thinking", message.reasoning))
    if message.content or not message.tool_calls:
        blocks.append(_text_block("text", message.content))
    return blocks + [
        {**_tool_use(call), "input": values_so_far(call["function"]["arguments"])} for call in message.tool_calls
    ]


def _text_block(kind: str, text: str) -> Json:
    """Return a text or a thought; one that only begins is not signed yet."""
    signature = {"signature": _SIGNATURE if text else ""} if kind == "thinking" else {}
    return {"type": kind, kind: text, **signature}


def _tool_use(call: Json) -> Json:
    return {"type": "tool_use", "id": shown_id(call["id"]), "name": call["function"]["name"]}


def _shown_arguments(text: str, call: Json | None) -> str:
    """Return what a client is sent of arguments so far, and of those of a whole call: it takes JSON of an object alone, which may be cut off."""
    if text.lstrip().startswith("{"):
        return readable_part(text)
    return json.dumps(values_so_far(call["function"]["arguments"])) if call is not None else ""


def _ending(reply: Completion) -> Json:
    stopped_by = None if reply.finish == "tool_calls" else reply.message.stopped_by
    reasons = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
    return {
        "stop_reason": reasons[reply.finish] if stopped_by is None else "stop_sequence",
        "stop_sequence": stopped_by,
    }


def read(session: Session, body: bytes) -> ReadRequest:
    """Read a request whose tokens are to be counted, or that is to be answered.

    Raises:
        ApiError: A field is wrong, or the session does not know the thread that it continues.
    """
    request = read_body(MessagesRequest, body)
    return [request.to_completion_request(session)], partial(MessagesWriter, request=request)
