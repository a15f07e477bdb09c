"""Read what the proxy answers as the clients of each dialect do: by the types of their own SDKs, streams put together by their own code where they have some."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
from anthropic.lib.streaming._beta_messages import accumulate_event
from anthropic.types import MessageTokensCount
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from google.genai import types as google
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

CHAT_EVENT = TypeAdapter[Any](ChatCompletionChunk)
MESSAGES_EVENT = TypeAdapter[Any](BetaRawMessageStreamEvent)
RESPONSES_EVENT = TypeAdapter[Any](ResponseStreamEvent)


@dataclass
class Reply:
    """What a client has of one reply, in every dialect's form. Its counts are None where it asked for none."""

    finish: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    texts: list[str]
    """One for each choice."""
    called: list[tuple[str, Any]] = field(default_factory=list)
    """Tools, with their arguments."""


def events_of(said: str) -> list[Any]:
    """The data of server-sent events."""
    data = [line.removeprefix("data:").strip() for line in said.splitlines() if line.startswith("data:")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def _chat(reply: ChatCompletion) -> Reply:
    choices = reply.choices
    assert [choice.index for choice in choices] == list(range(len(choices)))
    called = [call for choice in choices for call in choice.message.tool_calls or []]
    assert all(call.id for call in called)
    legacy = [choice.message.function_call for choice in choices if choice.message.function_call]
    finish = choices[0].finish_reason
    assert (finish in ("tool_calls", "function_call")) == bool(called or legacy)
    named = [
        (call.function.name, call.function.arguments)
        if call.type == "function"
        else (call.custom.name, json.dumps({"input": call.custom.input}))
        for call in called
    ]
    named += [(call.name, call.arguments) for call in legacy]
    usage = reply.usage
    if usage is not None:
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return Reply(
        finish,
        usage and usage.prompt_tokens,
        usage and usage.completion_tokens,
        [choice.message.content or "" for choice in choices],
        [(name, json.loads(arguments)) for name, arguments in named],
    )


def _chat_stream(said: str) -> Reply:
    assert said.endswith("data: [DONE]\n\n")
    state = ChatCompletionStreamState()
    for event in events_of(said):
        state.handle_chunk(CHAT_EVENT.validate_python(event))
    return _chat(state.get_final_completion())


def _completion(reply: Completion) -> Reply:
    usage = reply.usage
    texts = [choice.text for choice in reply.choices]
    return Reply(
        reply.choices[0].finish_reason, usage and usage.prompt_tokens, usage and usage.completion_tokens, texts
    )


def _completion_stream(said: str) -> Reply:
    assert said.endswith("data: [DONE]\n\n")
    # The service's pieces but the last have null for a finish reason, which the SDK's type does not know, and which it does not check.
    pieces = [Completion.construct(**event) for event in events_of(said)]
    for piece in pieces[:-1]:
        assert all(choice.finish_reason in (None, "stop", "length") for choice in piece.choices)
    choices = [choice for piece in pieces for choice in piece.choices]
    texts = [
        "".join(choice.text for choice in choices if choice.index == index)
        for index in sorted({choice.index for choice in choices})
    ]
    usage = pieces[-1].usage
    assert choices[-1].finish_reason in ("stop", "length")
    return Reply(choices[-1].finish_reason, usage and usage.prompt_tokens, usage and usage.completion_tokens, texts)


def _message(reply: BetaMessage) -> Reply:
    uses = [block for block in reply.content if block.type == "tool_use"]
    assert all(use.id.startswith("toolu_") for use in uses)
    assert (reply.stop_reason == "tool_use") == bool(uses)
    assert (reply.stop_reason == "stop_sequence") == (reply.stop_sequence is not None)
    text = "".join(block.text for block in reply.content if block.type == "text")
    read = reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
    read += reply.usage.cache_creation_input_tokens or 0
    return Reply(
        reply.stop_reason, read, reply.usage.output_tokens, [text], [(str(use.name), use.input) for use in uses]
    )


def _message_stream(said: str) -> Reply:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    events = [MESSAGES_EVENT.validate_python(event) for event in events_of(said) if event["type"] != "ping"]
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    for event in events:
        snapshot = accumulate_event(
            event=event, current_snapshot=snapshot, json_bufs=buffers, request_headers=httpx2.Headers()
        )
    return _message(snapshot)


def _response(reply: Response) -> Reply:
    assert reply.status in ("completed", "incomplete")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    called = [
        (item.name, json.loads(item.arguments)) if item.type == "function_call" else (item.name, {"input": item.input})
        for item in reply.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    return Reply(reply.status, reply.usage.input_tokens, reply.usage.output_tokens, [reply.output_text], called)


def _response_stream(said: str) -> Reply:
    events = [RESPONSES_EVENT.validate_python(event) for event in events_of(said)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == last.response.output_text
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == [item.type for item in last.response.output]
    return _response(last.response)


def _google(pieces: list[Any]) -> Reply:
    replies = [google.GenerateContentResponse.model_validate(piece) for piece in pieces]
    found = [candidate for reply in replies for candidate in reply.candidates or []]
    texts: dict[int, str] = {}
    called = []
    for candidate in found:
        assert candidate.content is not None
        index = candidate.index or 0
        for part in candidate.content.parts or []:
            texts[index] = texts.get(index, "") + ("" if part.thought else part.text or "")
            if part.function_call is not None:
                called.append((str(part.function_call.name), part.function_call.args))
    usage = replies[-1].usage_metadata
    assert usage is not None
    assert usage.total_token_count is not None
    finish = found[-1].finish_reason
    return Reply(
        finish and finish.name,
        usage.prompt_token_count,
        usage.total_token_count - (usage.prompt_token_count or 0),
        list(texts.values()),
        called,
    )


FINISHES = {
    "/v1/chat/completions": {"stop", "tool_calls", "length", "function_call"},
    "/v1/completions": {"stop", "length"},
    "/v1/messages": {"end_turn", "tool_use", "max_tokens", "stop_sequence"},
    "/v1/responses": {"completed", "incomplete"},
    "google": {"STOP", "MAX_TOKENS"},
}
"""Why a reply ends, in the words of each dialect."""
READ: dict[str, tuple[Callable[[Any], Reply], Callable[[str], Reply]]] = {
    "/v1/chat/completions": (lambda said: _chat(ChatCompletion.model_validate(said)), _chat_stream),
    "/v1/completions": (lambda said: _completion(Completion.model_validate(said)), _completion_stream),
    "/v1/messages": (lambda said: _message(BetaMessage.model_validate(said)), _message_stream),
    "/v1/responses": (lambda said: _response(Response.model_validate(said)), _response_stream),
    "google": (
        lambda said: _google(said if isinstance(said, list) else [said]),
        lambda said: _google(events_of(said)),
    ),
}
"""How a whole reply of each dialect is read, and a stream."""


def dialect_of(method: str, path: str) -> str | None:
    """The dialect of a request that the model replies to; None for others."""
    path = path.partition("?")[0].rstrip("/")
    if method == "POST" and path.endswith(("generateContent", "streamGenerateContent")):
        return "google"
    return path if method == "POST" and path in READ else None


def read_reply(dialect: str, content_type: str, said: str) -> Reply:
    """What a client reads of a reply. Fails where it is not as its SDK's types say."""
    whole, stream = READ[dialect]
    reply = stream(said) if content_type == "text/event-stream" else whole(json.loads(said))
    assert reply.finish in FINISHES[dialect]
    return reply


def check_other(method: str, path: str, said: str) -> None:
    """Check what is answered without the model."""
    path = path.partition("?")[0].rstrip("/")
    if method == "HEAD" or path == "":
        return
    answer = json.loads(said)
    if path.endswith("/count_tokens"):
        assert MessageTokensCount.model_validate(answer).input_tokens > 0
    elif path.endswith(":countTokens"):
        assert (google.CountTokensResponse.model_validate(answer).total_tokens or 0) > 0
    elif "/models" in path:
        for model in answer.get("data", [answer]):
            assert Model.model_validate(model).id
    else:
        assert path.startswith("/v1/responses/"), path
        assert answer["id"] == path.rpartition("/")[2]
        assert method == "DELETE" or Response.model_validate(answer).output
