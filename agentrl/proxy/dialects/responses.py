"""`/v1/responses`: OpenAI's API of items, and its stream of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.proxy.completion import Completion, Delta, Json, PreparedCompletion, Send
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.dialects.responses_request import ResponsesRequest, ShownTool, parse_request, unknown_response
from agentrl.proxy.dialects.tools_as_functions import custom_input
from agentrl.proxy.errors import ApiError
from agentrl.proxy.session import Conversation, Session, SessionRole


class Responses:
    """The endpoint."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service

    def prepare(self, role: SessionRole, body: bytes) -> tuple[ResponsesRequest, PreparedCompletion]:
        """Check a request and render its prompt.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = parse_request(body)
        before = None
        if request.previous_response_id is not None:
            before = role.session.conversations.get(request.previous_response_id)
            if before is None:
                raise unknown_response(request.previous_response_id)
        asked = request.to_completion_request(before.messages() if before else [], role.session.items)
        call = self._service.prepare(role, asked, "resp_")
        call.before = before
        return request, call

    async def complete(self, request: ResponsesRequest, call: PreparedCompletion) -> Json:
        """Return the whole reply as one `response`."""
        reply = await self._service.reply(call)
        response = _response(request, call, reply)
        self._remember(request, call, reply, response)
        return response

    async def stream(self, request: ResponsesRequest, call: PreparedCompletion, send: Send) -> None:
        """Send the reply as `response.*` events, sent as the tokens arrive."""
        stream = _EventStream(call.id, send, request.shown_tools)
        try:
            await stream.say("response.created", response=_response(request, call, None))
            await stream.say("response.in_progress", response=_response(request, call, None))
            reply = await self._service.reply(call, 0, stream.emit)
            await stream.close_item()
            if not reply.message.content and not reply.message.tool_calls:
                await stream.open_item("message")
                await stream.close_item()
            # Text may have come behind a call, as an item of its own: a response has the items that its stream had.
            response = {**_response(request, call, reply), "output": stream.items}
            self._remember(request, call, reply, response)
            await stream.say(f"response.{response['status']}", whole=True, response=response)
        except ApiError as error:
            failed = {**_response(request, call, None), "status": "failed"}
            failed["error"] = {"code": error.code or "server_error", "message": error.message}
            await stream.say("response.failed", response=failed)

    @staticmethod
    def _remember(request: ResponsesRequest, call: PreparedCompletion, reply: Completion, response: Json) -> None:
        session = call.session
        if response["store"]:
            if session.responses:
                # An agent sends the same instructions and tools with each of its calls: they are held once.
                last = next(reversed(session.responses.values()))
                response |= {name: last[name] for name in ("instructions", "tools") if last[name] == response[name]}
            session.responses[call.id] = response
            session.items.update({item["id"]: item for item in response["output"]})
        before = call.before
        # `instructions` are of one request, and not part of the conversation that it goes on from.
        known = (1 if request.instructions else 0) + (len(before.messages()) if before else 0)
        session.conversations[call.id] = Conversation(before, [*call.request.messages[known:], reply.message.to_json()])


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
    session.conversations.pop(response_id, None)
    del session.responses[response_id]
    return {"id": response_id, "object": "response", "deleted": True}


class _EventStream:
    """Turns deltas into events: one item is open at a time, and is closed when the next begins."""

    def __init__(self, response_id: str, send: Send, tools: Mapping[str, ShownTool]) -> None:
        self._response_id = response_id
        self._tools = tools
        self._send = send
        self._sequence = 0
        self._index = -1
        self._item: Json | None = None
        self._text = ""
        self.items: list[Json] = []
        """Those that are done."""

    async def say(self, kind: str, *, whole: bool = False, **fields: Any) -> None:
        await self._send({"type": kind, "sequence_number": self._sequence, **fields}, whole=whole)
        self._sequence += 1

    async def emit(self, delta: Delta) -> None:
        if delta.begun_call is not None or delta.tool_call is not None:
            await self._call(delta)
            return
        kind = "reasoning" if delta.reasoning else "message"
        if self._item is None or self._item["type"] != kind:
            await self.close_item()
            await self.open_item(kind)
        text = delta.reasoning or delta.text
        self._text += text
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        await self.say(f"response.{name}.delta", **self._place(), delta=text, **_NO_LOGPROBS.get(name, {}))

    async def open_item(self, kind: str) -> None:
        self._index += 1
        self._text = ""
        self._item = _item(self._response_id, self._index, kind, "", done=False)
        await self.say("response.output_item.added", output_index=self._index, item={**self._item, "content": []})
        await self.say("response.content_part.added", **self._place(), part=self._item["content"][0])

    async def close_item(self) -> None:
        if self._item is None:
            return
        kind = self._item["type"]
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        item = _item(self._response_id, self._index, kind, self._text, done=True)
        await self.say(f"response.{name}.done", **self._place(), text=self._text, **_NO_LOGPROBS.get(name, {}))
        await self.say("response.content_part.done", **self._place(), part=item["content"][0])
        await self._done(item)
        self._item = None

    async def _done(self, item: Json) -> None:
        self.items.append(item)
        await self.say("response.output_item.done", output_index=self._index, item=item)

    async def _call(self, delta: Delta) -> None:
        begun, whole = delta.begun_call, delta.tool_call
        if begun is not None and not delta.arguments:
            await self.close_item()
            self._index += 1
        item = _tool_call(self._response_id, self._index, begun or whole or {}, self._tools)
        place = {"item_id": item["id"], "output_index": self._index}
        if item["type"] == "custom_tool_call":
            field, event, named = "input", "response.custom_tool_call_input", {}
        else:
            field, event, named = "arguments", "response.function_call_arguments", {"name": item["name"]}
        if begun is not None and not delta.arguments:
            added = {**item, field: "", "status": "in_progress"}
            await self.say("response.output_item.added", output_index=self._index, item=added)
        elif delta.arguments and field == "arguments":
            await self.say(f"{event}.delta", **place, delta=delta.arguments)
        elif whole is not None:
            if field == "input":
                # The text of a custom tool is read from whole arguments.
                await self.say(f"{event}.delta", **place, delta=item[field])
            await self.say(f"{event}.done", **place, **named, **{field: item[field]})
            await self._done(item)

    def _place(self) -> Json:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": self._index, "content_index": 0}


_NO_LOGPROBS: dict[str, Json] = {"output_text": {"logprobs": []}}


def _item(response_id: str, index: int, kind: str, text: str, *, done: bool) -> Json:
    """Return a reasoning or message item, with the same id in the stream and in the response."""
    suffix = f"{response_id.removeprefix('resp_')}_{index}"
    status = "completed" if done else "in_progress"
    if kind == "reasoning":
        content = [{"type": "reasoning_text", "text": text}]
        return {"id": f"rs_{suffix}", "type": kind, "summary": [], "content": content, "status": status}
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{suffix}", "type": kind, "role": "assistant", "status": status, "content": [part]}


def _tool_call(response_id: str, index: int, call: Json, tools: Mapping[str, ShownTool]) -> Json:
    """Return a call as the client wrote its tool. A name that no tool has stays as the policy said it."""
    suffix, function = f"{response_id.removeprefix('resp_')}_{index}", call["function"]
    item: Json = {"call_id": call["id"], "status": "completed", "name": function["name"]}
    shown = tools.get(function["name"])
    if shown is not None:
        item["name"] = shown.tool.name
        if shown.namespace is not None:
            item["namespace"] = shown.namespace
    if shown is not None and shown.is_custom:
        return {"id": f"ctc_{suffix}", "type": "custom_tool_call", **item, "input": custom_input(function["arguments"])}
    return {"id": f"fc_{suffix}", "type": "function_call", **item, "arguments": function["arguments"]}


def _output(request: ResponsesRequest, call: PreparedCompletion, reply: Completion) -> list[Json]:
    message = reply.message
    items: list[Json] = []
    if message.reasoning:
        items.append(_item(call.id, 0, "reasoning", message.reasoning, done=True))
    if message.content or not message.tool_calls:
        items.append(_item(call.id, len(items), "message", message.content, done=True))
    for tool_call in message.tool_calls:
        items.append(_tool_call(call.id, len(items), tool_call, request.shown_tools))
    return items


def _response(request: ResponsesRequest, call: PreparedCompletion, reply: Completion | None) -> Json:
    """Return the `response` object; without a reply, its state at the start."""
    truncated = reply is not None and reply.finish == "length"
    content: Json = {
        "id": call.id,
        "object": "response",
        "created_at": call.created,
        "status": "in_progress" if reply is None else "incomplete" if truncated else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "model": request.model,
        "output": [] if reply is None else _output(request, call, reply),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": request.store is not False,
        "temperature": call.sampling.temperature,
        "text": {"format": request.text.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": "auto" if request.tool_choice is None else request.model_dump()["tool_choice"],
        "tools": [_shown(tool.model_dump()) for tool in request.tools or []],
        "top_p": call.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
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


def _shown(tool: Json) -> Json:
    if tool["type"] == "custom":
        told = {name: value for name, value in tool.items() if value is not None}
        return {"format": {"type": "text"}, **told}
    return {**tool, "strict": None} if tool["type"] == "function" else tool
