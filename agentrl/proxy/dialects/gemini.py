"""Google's `models/NAME:generateContent`, `:streamGenerateContent` and `:countTokens`.

systemInstruction:  text                                a system message
user:               functionResponse                    tool messages, each on its own, before the text that follows them
                    text, inlineData (images)           a user message
model:              text, thought, functionCall         one assistant message, however many contents it was streamed as; the last is continued

Clients may leave the ids of calls out: a call is then named by the place of its message, and an answer belongs to the first call of its
name that has none yet. Names of fields may be written as `topP` or as `top_p`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from agentrl.proxy.answer import Framing, ReadRequest, Writer
from agentrl.proxy.completion import (
    OBJECT_SCHEMA,
    Completion,
    CompletionRequest,
    Delta,
    Json,
    NamedTool,
    PreparedCompletion,
)
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.fields import Count, Penalty, RequestBody, Seed, Stop, Temperature, Tokens, TopP
from agentrl.proxy.dialects.parts import function_call, function_tool, joined, left_out
from agentrl.proxy.errors import invalid, read_body
from agentrl.proxy.session import Session
from agentrl.proxy.tool_calls import values_so_far

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")
_CALLS_NAMED = 128
_NOT_SHOWN = ("nullable", "propertyOrdering", "property_ordering")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""The fields of a schema that Google's clients send as text, since JSON has no integers of 64 bits."""
_CAMEL = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


class _Blob(TypedDict):
    mime_type: str
    data: str


class _FunctionCall(TypedDict):
    id: NotRequired[str | None]
    name: str
    args: NotRequired[Json | None]


class _FunctionResponse(TypedDict):
    id: NotRequired[str | None]
    name: str
    response: NotRequired[Json | None]


class _ContentPart(TypedDict, total=False):
    text: str | None
    thought: bool | None
    inline_data: _Blob | None
    function_call: _FunctionCall | None
    function_response: _FunctionResponse | None


class _Content(TypedDict, total=False):
    role: Literal["user", "model", "function", "system"] | None
    parts: Annotated[list[_ContentPart], Field(fail_fast=True)] | None


class _FunctionDeclaration(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[Json | None]
    parameters_json_schema: NotRequired[Json | None]


class _Tool(TypedDict, total=False):
    function_declarations: Annotated[list[_FunctionDeclaration], Field(fail_fast=True)] | None


class _FunctionCallingConfig(TypedDict, total=False):
    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None
    allowed_function_names: list[str] | None


class _ToolConfig(TypedDict, total=False):
    function_calling_config: _FunctionCallingConfig | None


class _ThinkingConfig(TypedDict, total=False):
    include_thoughts: bool | None


class _GenerationConfig(RequestBody):
    model_config = _CAMEL

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[float, Field(ge=0, lt=2**31, multiple_of=1)] = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    max_output_tokens: Tokens | None = None
    stop_sequences: list[Stop] = Field(default_factory=list, max_length=5)
    candidate_count: Count = 1
    seed: Seed | None = None
    response_mime_type: Literal["text/plain", "application/json"] | None = None
    response_schema: Json | None = None
    response_json_schema: Json | None = None
    thinking_config: _ThinkingConfig = Field(default_factory=_ThinkingConfig)

    def schema_text(self) -> str | None:
        """Return the JSON schema that the reply must satisfy, as JSON."""
        schema = self.response_json_schema or (self.response_schema and json_schema(self.response_schema))
        if schema:
            return json.dumps(schema)
        return OBJECT_SCHEMA if self.response_mime_type == "application/json" else None


class GenerateRequest(RequestBody):
    """Google's request; `RequestBody` says what becomes of a field that is not here."""

    model_config = _CAMEL

    contents: Annotated[list[_Content], Field(min_length=1, fail_fast=True)]
    system_instruction: _Content = Field(default_factory=_Content)
    tools: list[_Tool] = Field(default_factory=list, fail_fast=True)
    tool_config: _ToolConfig = Field(default_factory=_ToolConfig)
    generation_config: _GenerationConfig = _GenerationConfig()

    def to_completion_request(self, model: str) -> CompletionRequest:
        """Return the request in every dialect's form.

        Raises:
            ApiError: A tool, a schema or an answer to a call cannot be.
        """
        messages = self._messages()
        wanted, calling = self.generation_config, self.tool_config.get("function_calling_config") or {}
        functions = [one for tool in self.tools for one in tool.get("function_declarations") or ()]
        if allowed := calling.get("allowed_function_names"):
            functions = [one for one in functions if one["name"] in allowed]
        choice: Any = {"ANY": "required", "NONE": "none"}.get(calling.get("mode") or "", "auto")
        if choice == "required" and allowed and len(allowed) == 1:
            choice = NamedTool(allowed[0])
        continues = messages[-1]["role"] == "assistant"
        place = len(messages) - continues
        return CompletionRequest(
            model=model,
            messages=messages,
            continues=continues,
            tools=[_tool(function) for function in functions],
            tool_choice=choice,
            tool_call_ids=[_call_id(place, number) for number in range(_CALLS_NAMED)] if functions else [],
            max_tokens=wanted.max_output_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            seed=wanted.seed,
            stop=wanted.stop_sequences,
            choices=wanted.candidate_count,
            alterations={
                "top_k": int(wanted.top_k) or -1,
                "presence_penalty": wanted.presence_penalty,
                "frequency_penalty": wanted.frequency_penalty,
            },
            json_schema=wanted.schema_text(),
            ignored=self.ignored(),
        )

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        kinds = left_out(kind for tool in self.tools for kind in tool if kind != "function_declarations")
        names = [f"generationConfig.{name}" for name in self.generation_config.ignored()]
        return [*super().ignored(), *names, *kinds]

    def _messages(self) -> list[Json]:
        messages: list[Json] = []
        if system := self.system_instruction.get("parts"):
            messages.append({"role": "system", "content": joined([_part(part) for part in system])})
        open_calls: dict[str, str] = {}  # id -> name of the calls that have no answer yet
        for content in self.contents:
            parts = content.get("parts") or []
            if content.get("role") == "model":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                open_calls |= _add_reply(messages[-1], parts, len(messages) - 1)
                continue
            said: list[Json] = []
            for part in parts:
                if (answer := part.get("function_response")) is not None:
                    call_id = _answered_call(answer, open_calls)
                    text = _answer_text(answer.get("response") or {})
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
                else:
                    said.append(_part(part))
            if said or not parts:
                messages.append({"role": "user", "content": joined(said)})
        return messages


def _part(part: _ContentPart) -> Json:
    """Return a text or an image of the user's.

    Raises:
        ApiError: It is something else.
    """
    if (blob := part.get("inline_data")) is not None:
        return {"url": f"data:{blob['mime_type']};base64,{blob['data']}"}
    if part.get("text") is None:
        problem = "the user's parts are text, inlineData or functionResponse; no model here reads others"
        raise invalid("contents", problem)
    return {"text": part["text"]}


def _answer_text(response: Json) -> str:
    """Return the answer to a call as the model is shown it: its one `output` or `result`, or all of it."""
    value: Any = response
    if len(response) == 1:
        value = response.get("output", response.get("result", response))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _add_reply(message: Json, parts: Sequence[_ContentPart], place: int) -> dict[str, str]:
    """Add to the message at `place` what the model said, and return the names of its calls by their ids."""
    names: dict[str, str] = {}
    for part in parts:
        if (call := part.get("function_call")) is not None:
            calls = message.setdefault("tool_calls", [])
            call_id = call.get("id") or _call_id(place, len(calls))
            calls.append(function_call(call_id, call["name"], call.get("args") or {}))
            names[call_id] = call["name"]
        else:
            field = "reasoning_content" if part.get("thought") else "content"
            message[field] = message.get(field, "") + (part.get("text") or "")
    return names


def _answered_call(answer: _FunctionResponse, open_calls: dict[str, str]) -> str:
    """Return the id of the call that an answer belongs to, which is then no longer open.

    Raises:
        ApiError: It has no id, and none of its name is open.
    """
    name = answer["name"]
    call_id = answer.get("id") or next((known for known, called in open_calls.items() if called == name), None)
    if call_id is None:
        raise invalid("contents", f"a functionResponse answers {name!r}, which nothing before it calls")
    open_calls.pop(call_id, None)
    return call_id


def _call_id(place: int, number: int) -> str:
    """Return the id of one call of the message at `place`."""
    return f"call_{place}_{number}"


def _tool(function: _FunctionDeclaration) -> Json:
    schema = function.get("parameters_json_schema") or json_schema(function.get("parameters"))
    return function_tool(function["name"], function.get("description"), schema)


def json_schema(schema: Any) -> Any:
    """Return the JSON schema that a schema of Google's stands for; one that is a JSON schema already is as it was."""
    if isinstance(schema, list):
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: json_schema(one) for name, one in schema.items() if isinstance(one, dict) or name not in _NOT_SHOWN}
    shown |= {name: int(shown[name]) for name in _COUNTS if str(shown.get(name)).isdecimal()}
    if isinstance(kind := schema.get("type"), str):
        shown["type"] = [kind.lower(), "null"] if schema.get("nullable") is True else kind.lower()
    return shown


def called(path: str) -> tuple[str, str] | None:
    """Return the model and the method that a path calls; None for a path of another kind."""
    found = _PATH.fullmatch(path)
    return (found[1], found[2]) if found else None


class ContentWriter(Writer):
    """Write replies as a `GenerateContentResponse`, or as several. A part is a text, or a whole call."""

    def __init__(self, calls: Sequence[PreparedCompletion], framing: Framing | None, *, shows_thoughts: bool) -> None:
        super().__init__(calls, stream=framing is not None)
        self.framing = framing or "plain"
        self._shows_thoughts = shows_thoughts
        self._ended: list[Completion] = []

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply: a candidate has the parts that its stream would have."""
        candidates = []
        for index, reply in enumerate(replies):
            parts = [part for delta in SentDeltas().growth(reply.message, final=True) for part in self._parts(delta)]
            candidates.append(_candidate(index, parts or [{"text": ""}], reply))
        return self._response(candidates, replies)

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what a candidate gained."""
        for part in self._parts(delta):
            yield self._response([_candidate(index, [part])], [])

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End a candidate."""
        self._ended.append(reply)
        yield self._response([_candidate(index, [{"text": ""}], reply)], self._ended)

    def _parts(self, delta: Delta) -> Iterator[Json]:
        if (call := delta.tool_call) is not None:
            function = call["function"]
            arguments = values_so_far(function["arguments"])
            yield {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments}}
        elif delta.text:
            yield {"text": delta.text}
        elif delta.reasoning and self._shows_thoughts:
            yield {"text": delta.reasoning, "thought": True}

    def _response(self, candidates: list[Json], replies: Sequence[Completion]) -> Json:
        (call,) = self.calls
        prompt, output = len(call.prompt.input_ids), sum(len(reply.generation.output_ids) for reply in replies)
        thought = sum(reply.message.reasoning_tokens for reply in replies)
        usage = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": max((reply.generation.cached_tokens for reply in replies), default=0),
            "candidatesTokenCount": output - thought,
            "thoughtsTokenCount": thought,
            "totalTokenCount": prompt + output,
        }
        named = {"modelVersion": call.request.model, "responseId": call.id}
        return {"candidates": candidates, "usageMetadata": usage, **named}


def _candidate(index: int, parts: list[Json], reply: Completion | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": index}
    if reply is not None:
        candidate["finishReason"] = "MAX_TOKENS" if reply.finish == "length" else "STOP"
    return candidate


def read(model: str, framing: Framing | None, session: Session, body: bytes) -> ReadRequest:
    """Read a request to `model`.

    Args:
        model: the model's name.
        framing: how the events of a stream are written; None: the reply comes whole.
        session: the session that asks.
        body: its body.

    Raises:
        ApiError: A field is wrong.
    """
    request = read_body(GenerateRequest, body)
    shows_thoughts = bool(request.generation_config.thinking_config.get("include_thoughts"))
    writer = partial(ContentWriter, framing=framing, shows_thoughts=shows_thoughts)
    return [request.to_completion_request(model)], writer
