"""`/v1/responses`: OpenAI's API of items, and its stream of events.

message                          a message of its role
reasoning, message, function_call, function_call, ...    one assistant message: what one response said
function_call_output             a tool message
item_reference                   the item of this session that has the id
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Discriminator, Field, Tag
from typing_extensions import TypedDict

from agentrl.proxy.answer import ReadRequest, Writer
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.fields import Temperature, Tokens, TopP
from agentrl.proxy.dialects.parts import (
    Content,
    Format,
    Text,
    ToolsRequest,
    function_call,
    joined,
    schema_text,
    shown_name,
)
from agentrl.proxy.errors import ApiError, invalid, read_body
from agentrl.proxy.session import Session


class _Message(TypedDict):
    type: NotRequired[Literal["message"] | None]
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class _Call(TypedDict):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str | None]
    arguments: str | Json


class _ToolOutput(TypedDict):
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class _Reasoning(TypedDict):
    type: Literal["reasoning"]
    content: NotRequired[list[Text] | None]


class _ItemReference(TypedDict):
    type: Literal["item_reference"]
    id: str


def _type(item: Any) -> Any:
    """Return the type of an item: a message may leave it out."""
    return (item.get("type") or "message") if isinstance(item, dict) else None


_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_ToolOutput, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")]
    | Annotated[_ItemReference, Tag("item_reference")],
    Discriminator(_type),
]


class _TextSettings(BaseModel):
    format: Format | None = None


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

    def to_completion_request(self, session: Session) -> CompletionRequest:
        """Return the request in every dialect's form, after the conversation that it continues.

        Raises:
            ApiError: There is nothing to answer, or the session does not know the conversation or an item.
        """
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = [*instructions, *self._before(session), *self._messages(session.items)]
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

    def _before(self, session: Session) -> Sequence[Json]:
        if self.previous_response_id is None:
            return ()
        if (before := session.histories.get(self.previous_response_id)) is None:
            message = f"Previous response with id '{self.previous_response_id}' not found."
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        return before.messages

    def _messages(self, referred: Mapping[str, Json]) -> list[Json]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        messages: list[Json] = []
        spoken: Json = {}  # the assistant message that the next item may belong to; empty: none

        def begin() -> Json:
            messages.append({"role": "assistant", "content": ""})
            return messages[-1]

        for sent in self.input:
            item: Any = _resolved(sent, referred)
            match _type(item):
                case "reasoning":
                    spoken = begin()
                    if item.get("content"):
                        spoken["reasoning_content"] = joined(item["content"])
                case "function_call":
                    spoken = spoken or begin()
                    name = shown_name(item.get("namespace"), item["name"])
                    call = function_call(item["call_id"], name, item["arguments"])
                    spoken.setdefault("tool_calls", []).append(call)
                case "function_call_output":
                    spoken = {}
                    output = joined(item["output"])
                    messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
                case _ if item["role"] == "assistant":
                    if not spoken or spoken["content"] or "tool_calls" in spoken:
                        spoken = begin()
                    spoken["content"] = joined(item["content"])
                case _:
                    spoken = {}
                    role = "system" if item["role"] == "developer" else item["role"]
                    messages.append({"role": role, "content": joined(item["content"])})
        return messages


def _resolved(item: Any, referred: Mapping[str, Json]) -> Any:
    if item.get("type") != "item_reference":
        return item
    if item["id"] not in referred:
        raise invalid("input", f"it refers to the item {item['id']!r}, which no stored response of this session holds")
    return referred[item["id"]]


class ResponsesWriter(Writer):
    """Write a reply as a `response` of items, or as their events: one item is open at a time, and is closed when the next begins."""

    framing = "named"

    def __init__(self, calls: Sequence[PreparedCompletion], request: ResponsesRequest) -> None:
        super().__init__(calls, stream=request.stream)
        (self._call,) = calls
        self._request = request
        self._tools = [tool.said_again() for tool in request.tools]
        self._sequence = 0
        self._open: Json | None = None
        """The reasoning or message item that is open."""
        self._text = ""
        """Its text so far."""
        self._items: list[Json] = []
        """Those that are done."""

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply: a response has the items that its stream would have."""
        (reply,) = replies
        for delta in SentDeltas().growth(reply.message, final=True):
            list(self.delta(0, delta))
        *_, last = self.ended(0, reply)
        response: Json = last["response"]
        return response

    def opening(self) -> Iterator[Json]:
        """Begin the response."""
        yield self._event("response.created", response=self._response("in_progress"))

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what the response gained."""
        if delta.begun_call is not None or delta.tool_call is not None:
            yield from self._grow_call(delta)
            return
        kind = "reasoning" if delta.reasoning else "message"
        if self._open is None or self._open["type"] != kind:
            yield from self._close_item()
            yield from self._open_item(kind)
        text = delta.reasoning or delta.text
        self._text += text
        yield self._text_event("delta", delta=text)

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End the response, with all that it has."""
        if not reply.message.content and not reply.message.tool_calls:
            yield from self._close_item()
            yield from self._open_item("message")
        yield from self._close_item()
        response = self._response("incomplete" if reply.finish == "length" else "completed", reply)
        self._remember(reply, response)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> Json:
        """End the response with an error."""
        said = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response={**self._response("failed"), "error": said})

    def _event(self, kind: str, **fields: Any) -> Json:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **fields}

    def _item_event(self, kind: str, item: Json, **fields: Any) -> Json:
        """Return an event of an item that is not done."""
        return self._event(kind, item_id=item["id"], output_index=len(self._items), **fields)

    def _text_event(self, kind: str, **fields: Any) -> Json:
        """Return an event of the text of the item that is open."""
        assert self._open is not None
        if self._open["type"] == "reasoning":
            return self._item_event(f"response.reasoning_text.{kind}", self._open, content_index=0, **fields)
        return self._item_event(f"response.output_text.{kind}", self._open, content_index=0, logprobs=[], **fields)

    def _open_item(self, kind: str) -> Iterator[Json]:
        self._text = ""
        self._open = item = self._text_item(kind, "in_progress")
        (part,) = item["content"]
        yield self._event("response.output_item.added", output_index=len(self._items), item={**item, "content": []})
        yield self._item_event("response.content_part.added", item, content_index=0, part=part)

    def _close_item(self) -> Iterator[Json]:
        if self._open is None:
            return
        item = self._text_item(self._open["type"], "completed")
        (part,) = item["content"]
        yield self._text_event("done", text=self._text)
        yield self._item_event("response.content_part.done", item, content_index=0, part=part)
        yield self._done(item)
        self._open = None

    def _done(self, item: Json) -> Json:
        event = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return event

    def _grow_call(self, delta: Delta) -> Iterator[Json]:
        begun, whole = delta.begun_call, delta.tool_call
        if begun is not None and not delta.arguments:
            yield from self._close_item()
            item = {**self._call_item(begun), "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=len(self._items), item=item)
        elif begun is not None:
            item = self._call_item(begun)
            yield self._item_event("response.function_call_arguments.delta", item, delta=delta.arguments)
        elif whole is not None:
            item = self._call_item(whole)
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield self._item_event("response.function_call_arguments.done", item, **said)
            yield self._done(item)

    def _text_item(self, kind: str, status: str) -> Json:
        """Return the reasoning or message item that comes next, with the same id in the stream and in the response."""
        if kind == "reasoning":
            content = [{"type": "reasoning_text", "text": self._text}]
            return {"id": self._id("rs"), "type": kind, "summary": [], "content": content, "status": status}
        part = {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}
        return {"id": self._id("msg"), "type": kind, "role": "assistant", "status": status, "content": [part]}

    def _call_item(self, call: Json) -> Json:
        """Return a call as the client wrote its tool. A name that no tool has stays as the policy said it."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        item = {"id": self._id("fc"), "type": "function_call", "call_id": call["id"], "status": "completed"}
        tool = self._request.functions.get(name)
        if tool is not None and tool.namespace:
            return {**item, "namespace": tool.namespace, "name": tool.name, "arguments": arguments}
        return {**item, "name": name, "arguments": arguments}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._call.id.rpartition('_')[2]}_{len(self._items)}"

    def _response(self, status: str, reply: Completion | None = None) -> Json:
        """Return the `response` object; without a reply, its state before there is one."""
        call, request = self._call, self._request
        said = request.model_dump(include={"tool_choice", "store", "parallel_tool_calls"})
        wanted = request.text.format or Format(type="text")
        content: Json = {
            "id": call.id,
            "object": "response",
            "created_at": call.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": request.model,
            "output": [*self._items],
            "previous_response_id": request.previous_response_id,
            "temperature": call.sampling.temperature,
            "text": {"format": wanted.model_dump(by_alias=True, exclude_none=True)},
            "tools": self._tools,
            "top_p": call.sampling.top_p,
            "usage": None,
            **said,
        }
        if reply is not None:
            prompt, output = len(call.prompt.input_ids), len(reply.generation.output_ids)
            content["usage"] = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": reply.generation.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": reply.message.reasoning_tokens},
                "total_tokens": prompt + output,
            }
        return content

    def _remember(self, reply: Completion, response: Json) -> None:
        call, session = self._call, self._call.session
        if self._request.store:
            # An agent sends the same instructions and tools with each of its calls, which a session need not hold so often.
            session.responses[call.id] = {**response, "instructions": None, "tools": []}
            session.items.update({item["id"]: item for item in response["output"]})
        # `instructions` are of one request, and not part of the conversation that it goes on from.
        call.keep_history(reply, begin=bool(self._request.instructions))


def read(session: Session, body: bytes) -> ReadRequest:
    """Read a request.

    Raises:
        ApiError: A field is wrong, or the session does not know the conversation that it continues.
    """
    request = read_body(ResponsesRequest, body)
    return [request.to_completion_request(session)], partial(ResponsesWriter, request=request)


def stored_response(session: Session, method: str, response_id: str) -> Json:
    """Return a response that its client had stored, or forget it.

    Args:
        session: whose response it is.
        method: "GET" or "DELETE".
        response_id: its id.

    Raises:
        ApiError: 404 for an id that this session does not hold.
    """
    response = session.responses.get(response_id)
    if response is None:
        message = f"Response with id '{response_id}' not found."
        raise ApiError(404, message, param="response_id", code="response_not_found")
    if method == "GET":
        return response
    for item in response["output"]:
        session.items.pop(item["id"], None)
    session.histories.pop(response_id, None)
    del session.responses[response_id]
    return {"id": response_id, "object": "response", "deleted": True}
