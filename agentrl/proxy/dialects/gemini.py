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
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from agentrl.proxy.answer import Framing, Writer
from agentrl.proxy.completion import (
    OBJECT_SCHEMA,
    Completion,
    CompletionRequest,
    Delta,
    Json,
    NamedTool,
    PreparedCompletion,
)
from agentrl.proxy.completion_service import CompletionService
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.fields import Part, RequestBody
from agentrl.proxy.dialects.parts import image, joined
from agentrl.proxy.dialects.sampling import Count, Penalty, Seed, Temperature, Tokens, TopP
from agentrl.proxy.dialects.tools import function_call, function_tool, left_out
from agentrl.proxy.errors import invalid, read_body
from agentrl.proxy.session import SessionRole
from agentrl.proxy.tool_calls import values_so_far

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")
_CALLS_NAMED = 128
_NOT_SHOWN = ("nullable", "propertyOrdering", "property_ordering")
_CAMEL = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


class _CamelPart(Part):
    model_config = _CAMEL


class _Blob(_CamelPart):
    mime_type: str
    data: str


class _FunctionCall(_CamelPart):
    id: str | None = None
    name: str
    args: Json | None = None


class _FunctionResponse(_CamelPart):
    id: str | None = None
    name: str
    response: Json | None = None

    @property
    def text(self) -> str:
        """The text that the model is shown: its one `output` or `result`, or all of it."""
        value: Any = self.response or {}
        if len(value) == 1:
            value = value.get("output", value.get("result", value))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _ContentPart(_CamelPart):
    text: str | None = None
    thought: bool | None = None
    inline_data: _Blob | None = None
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None

    def shown(self) -> Json:
        """Return a text or an image of the user's in the form of OpenAI's parts.

        Raises:
            ApiError: It is something else.
        """
        if self.inline_data is not None:
            return image(f"data:{self.inline_data.mime_type};base64,{self.inline_data.data}")
        if self.text is None:
            raise invalid(
                "contents", "the user's parts are text, inlineData or functionResponse; no model here reads others"
            )
        return {"type": "text", "text": self.text}


class _Content(_CamelPart):
    role: Literal["user", "model", "function", "system"] | None = None
    parts: Annotated[list[_ContentPart], Field(fail_fast=True)] | None = None


class _FunctionDeclaration(_CamelPart):
    name: str
    description: str | None = None
    parameters: Json | None = None
    parameters_json_schema: Json | None = None

    def to_json(self) -> Json:
        schema = self.parameters_json_schema or (self.parameters and json_schema(self.parameters))
        return function_tool(self.name, self.description, schema)


class _Tool(Part):
    model_config = ConfigDict(**_CAMEL, extra="allow")

    function_declarations: Annotated[list[_FunctionDeclaration], Field(fail_fast=True)] | None = None


class _FunctionCallingConfig(_CamelPart):
    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: list[str] | None = None


class _ToolConfig(_CamelPart):
    function_calling_config: _FunctionCallingConfig = _FunctionCallingConfig()


class _ThinkingConfig(_CamelPart):
    include_thoughts: bool | None = None


class _GenerationConfig(RequestBody):
    model_config = _CAMEL

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[float, Field(ge=0, lt=2**31, multiple_of=1)] = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    max_output_tokens: Tokens | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list, max_length=5)
    candidate_count: Count = 1
    seed: Seed | None = None
    response_mime_type: Literal["text/plain", "application/json"] | None = None
    response_schema: Json | None = None
    response_json_schema: Json | None = None
    thinking_config: _ThinkingConfig = _ThinkingConfig()

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
    system_instruction: _Content = _Content()
    tools: list[_Tool] = Field(default_factory=list, fail_fast=True)
    tool_config: _ToolConfig = _ToolConfig()
    generation_config: _GenerationConfig = _GenerationConfig()

    def to_completion_request(self, model: str) -> CompletionRequest:
        """Return the request in every dialect's form.

        Raises:
            ApiError: A tool, a schema or an answer to a call cannot be.
        """
        messages = self._messages()
        wanted, calling = self.generation_config, self.tool_config.function_calling_config
        functions = [one for tool in self.tools for one in tool.function_declarations or ()]
        if allowed := calling.allowed_function_names:
            functions = [one for one in functions if one.name in allowed]
        choice: Any = {"ANY": "required", "NONE": "none"}.get(calling.mode or "", "auto")
        if choice == "required" and allowed and len(allowed) == 1:
            choice = NamedTool(allowed[0])
        continues = messages[-1]["role"] == "assistant"
        place = len(messages) - continues
        return CompletionRequest(
            model=model,
            messages=messages,
            continues=continues,
            tools=[function.to_json() for function in functions],
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
        kinds = left_out(kind for tool in self.tools for kind in tool.model_extra or {})
        names = [f"generationConfig.{name}" for name in self.generation_config.ignored()]
        return [*super().ignored(), *names, *kinds]

    def _messages(self) -> list[Json]:
        messages: list[Json] = []
        if self.system_instruction.parts:
            messages.append({"role": "system", "content": joined(self.system_instruction.parts)})
        open_calls: dict[str, str] = {}  # id -> name of the calls that have no answer yet
        for content in self.contents:
            parts = content.parts or []
            if content.role == "model":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                open_calls |= _add_reply(messages[-1], parts, len(messages) - 1)
                continue
            for part in parts:
                if (answer := part.function_response) is not None:
                    call_id = _answered_call(answer, open_calls)
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": answer.text})
            said = [part for part in parts if part.function_response is None]
            if said or not parts:
                messages.append({"role": "user", "content": joined(said)})
        return messages


def _add_reply(message: Json, parts: Sequence[_ContentPart], place: int) -> dict[str, str]:
    """Add to the message at `place` what the model said, and return the names of its calls by their ids."""
    names: dict[str, str] = {}
    for part in parts:
        if (call := part.function_call) is not None:
            calls = message.setdefault("tool_calls", [])
            call_id = call.id or _call_id(place, len(calls))
            calls.append(function_call(call_id, call.name, call.args or {}))
            names[call_id] = call.name
        else:
            field = "reasoning_content" if part.thought else "content"
            message[field] = message.get(field, "") + (part.text or "")
    return names


def _answered_call(answer: _FunctionResponse, open_calls: dict[str, str]) -> str:
    """Return the id of the call that an answer belongs to, which is then no longer open.

    Raises:
        ApiError: It has no id, and none of its name is open.
    """
    call_id = answer.id or next((known for known, name in open_calls.items() if name == answer.name), None)
    if call_id is None:
        raise invalid("contents", f"a functionResponse answers {answer.name!r}, which nothing before it calls")
    open_calls.pop(call_id, None)
    return call_id


def _call_id(place: int, number: int) -> str:
    """Return the id of one call of the message at `place`."""
    return f"call_{place}_{number}"


def json_schema(schema: Any) -> Any:
    """Return the JSON schema that a schema of Google's stands for; one that is a JSON schema already is as it was."""
    if isinstance(schema, list):
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: json_schema(one) for name, one in schema.items() if isinstance(one, dict) or name not in _NOT_SHOWN}
    if isinstance(kind := schema.get("type"), str):
        shown["type"] = [kind.lower(), "null"] if schema.get("nullable") is True else kind.lower()
    return shown


def called(path: str) -> tuple[str, str] | None:
    """Return the model and the method that a path calls; None for a path of another kind."""
    found = _PATH.fullmatch(path)
    return (found[1], found[2]) if found else None


class ContentWriter(Writer):
    """Write replies as a `GenerateContentResponse`, or as several. A part is a text, or a whole call."""

    def __init__(self, call: PreparedCompletion, framing: Framing | None, *, shows_thoughts: bool) -> None:
        super().__init__([call], stream=framing is not None)
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


def read(
    model: str, framing: Framing | None, service: CompletionService, role: SessionRole, body: bytes
) -> ContentWriter:
    """Check a request to `model` and render its prompt.

    Args:
        model: the model's name.
        framing: how the events of a stream are written; None: the reply comes whole.
        service: what answers it.
        role: who asks.
        body: its body.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(GenerateRequest, body)
    call = service.prepare(role, request.to_completion_request(model), "resp_")
    return ContentWriter(call, framing, shows_thoughts=bool(request.generation_config.thinking_config.include_thoughts))


def count(model: str, service: CompletionService, role: SessionRole, body: bytes) -> Json:
    """Return how many tokens a request's prompt has.

    Raises:
        ApiError: The request cannot be answered.
    """
    request = read_body(GenerateRequest, body)
    return {"totalTokens": service.count(role, request.to_completion_request(model))}
