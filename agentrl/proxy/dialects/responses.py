"""`/v1/responses`: OpenAI's API of items, and its stream of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.proxy.answer import Writer
from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.responses_request import ResponsesRequest
from agentrl.proxy.errors import ApiError, read_body
from agentrl.proxy.session import History, Session, SessionRole

_UNSAID: dict[str, Json] = {"function": {"parameters": None, "strict": None}, "custom": {"format": {"type": "text"}}}
"""Fields of tools that a response says where the request left them out."""


class ResponsesWriter(Writer):
    """Write a reply as a `response` of items, or as their events: one item is open at a time, and is closed when the next begins."""

    framing = "named"

    def __init__(self, call: PreparedCompletion, request: ResponsesRequest) -> None:
        super().__init__([call], stream=request.stream)
        self._call = call
        self._request = request
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
        yield self._event("response.in_progress", response=self._response("in_progress"))

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
        if self._open["type"] == "message":
            name, fields = "output_text", {**fields, "logprobs": []}
        else:
            name = "reasoning_text"
        return self._item_event(f"response.{name}.{kind}", self._open, content_index=0, **fields)

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
        begins = begun is not None and not delta.arguments
        if begins:
            yield from self._close_item()
        item = self._call_item(begun or whole or {})
        is_custom = item["type"] == "custom_tool_call"
        name = "input" if is_custom else "arguments"
        event = f"response.{'custom_tool_call_input' if is_custom else 'function_call_arguments'}"
        if begins:
            added = {**item, name: "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=len(self._items), item=added)
        elif delta.arguments and not is_custom:
            yield self._item_event(f"{event}.delta", item, delta=delta.arguments)
        elif whole is not None:
            if is_custom:
                # The text of a custom tool is read from whole arguments.
                yield self._item_event(f"{event}.delta", item, delta=item["input"])
            named = {} if is_custom else {"name": item["name"]}
            yield self._item_event(f"{event}.done", item, **named, **{name: item[name]})
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
        function = call["function"]
        tool = self._request.shown_tools.get(function["name"])
        named = {"name": tool.name if tool else function["name"]}
        if tool and tool.namespace:
            named["namespace"] = tool.namespace
        item: Json = {"call_id": call["id"], "status": "completed", **named}
        text = self._request.custom_text(call)
        if text is not None:
            return {"id": self._id("ctc"), "type": "custom_tool_call", **item, "input": text}
        return {"id": self._id("fc"), "type": "function_call", **item, "arguments": function["arguments"]}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._call.id.removeprefix('resp_')}_{len(self._items)}"

    def _response(self, status: str, reply: Completion | None = None) -> Json:
        """Return the `response` object; without a reply, its state before there is one."""
        call, request = self._call, self._request
        said = request.model_dump(include={"tool_choice", "metadata", "user", "store", "parallel_tool_calls"})
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
            "reasoning": {"effort": None, "summary": None},
            "temperature": call.sampling.temperature,
            "text": {"format": request.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tools": [{**_UNSAID.get(tool.type, {}), **tool.model_dump(exclude_unset=True)} for tool in request.tools],
            "top_p": call.sampling.top_p,
            "truncation": "disabled",
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
            if session.responses:
                # An agent sends the same instructions and tools with each of its calls: they are held once.
                last = next(reversed(session.responses.values()))
                response |= {name: last[name] for name in ("instructions", "tools") if last[name] == response[name]}
            session.responses[call.id] = response
            session.items.update({item["id"]: item for item in response["output"]})
        # `instructions` are of one request, and not part of the conversation that it goes on from.
        asked = call.request.messages[1 if self._request.instructions else 0 :]
        session.histories[call.id] = History([*asked, reply.message.to_json()])


def read(service: CompletionService, role: SessionRole, body: bytes) -> ResponsesWriter:
    """Check a request and render its prompt.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(ResponsesRequest, body)
    before, session = History(()), role.session
    if (previous := request.previous_response_id) is not None:
        if previous not in session.histories:
            message = f"Previous response with id '{previous}' not found."
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        before = session.histories[previous]
    asked = request.to_completion_request(before.messages, session.items)
    return ResponsesWriter(service.prepare(role, asked, "resp_"), request)


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
