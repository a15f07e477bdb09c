"""The bodies of Gemini's `generateContent` and `countTokens`, and how their contents become messages.

systemInstruction:  text                                a system message
user:               functionResponse                    tool messages, each on its own, before the text that follows them
                    text, inlineData (images)           a user message
model:              text, thought, functionCall         one assistant message, however many contents it was streamed as; the last is continued

Clients may leave the ids of calls out: a call is then named by the place of its message, and an answer belongs to the first call of its
name that has none yet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from agentrl.proxy.completion import OBJECT_SCHEMA, CompletionRequest, Json, NamedTool
from agentrl.proxy.dialects.fields import Part, RequestBody, plain_names
from agentrl.proxy.dialects.parts import image, joined
from agentrl.proxy.dialects.sampling import Count, Penalty, Seed, Temperature, Tokens, TopP
from agentrl.proxy.dialects.tools import called, left_out
from agentrl.proxy.errors import invalid

_CALLS_NAMED = 128
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NOT_SHOWN = ("nullable", "propertyOrdering", "property_ordering")
_CAMEL = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


class _CamelPart(Part):
    model_config = ConfigDict(**_CAMEL, extra="ignore")


class _Blob(_CamelPart):
    mime_type: str
    data: str


class _FunctionCall(_CamelPart):
    id: str | None = None
    name: str
    args: Json = Field(default_factory=dict)


class _FunctionResponse(_CamelPart):
    id: str | None = None
    name: str
    response: Json = Field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return the text that the model is shown: its one `output` or `result`, or all of it."""
        value: Any = self.response
        if len(self.response) == 1:
            value = self.response.get("output", self.response.get("result", value))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _ContentPart(_CamelPart):
    text: str | None = None
    thought: bool = False
    inline_data: _Blob | None = None
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None
    thought_signature: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> _ContentPart:
        said = (self.text, self.inline_data, self.function_call, self.function_response)
        if sum(kind is not None for kind in said) > 1 or (said == (None,) * 4 and self.thought_signature is None):
            raise ValueError(
                "a part is a text, an inlineData, a functionCall or a functionResponse; no model here reads others"
            )
        return self

    def shown(self) -> Json:
        """Return a text or an image in the form of OpenAI's parts."""
        if self.inline_data is None:
            return {"type": "text", "text": self.text or ""}
        return image(f"data:{self.inline_data.mime_type};base64,{self.inline_data.data}")


class _Content(_CamelPart):
    role: Literal["user", "model", "function", "system"] = "user"
    parts: list[_ContentPart] = Field(default_factory=list, fail_fast=True)


class _FunctionDeclaration(_CamelPart):
    name: str
    description: str | None = None
    parameters: Json | None = None
    parameters_json_schema: Json | None = None

    def to_json(self) -> Json:
        schema = self.parameters_json_schema or (self.parameters and json_schema(self.parameters))
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


class _Tool(Part):
    model_config = ConfigDict(**_CAMEL, extra="allow")

    function_declarations: list[_FunctionDeclaration] = Field(default_factory=list, fail_fast=True)


class _FunctionCallingConfig(_CamelPart):
    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] = "AUTO"
    allowed_function_names: list[str] | None = None


class _ToolConfig(_CamelPart):
    function_calling_config: _FunctionCallingConfig = _FunctionCallingConfig()


class _ThinkingConfig(_CamelPart):
    include_thoughts: bool = False


class _GenerationConfig(RequestBody):
    model_config = ConfigDict(**_CAMEL, extra="allow")

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
        if self.response_mime_type == "application/json":
            return json.dumps(schema) if schema else OBJECT_SCHEMA
        if schema:
            problem = "a schema needs 'responseMimeType': \"application/json\""
            raise invalid("generationConfig.responseMimeType", problem)
        return None


class GenerateRequest(RequestBody):
    """Google's request; `RequestBody` says what becomes of a field that is not here. Names may be written as `top_p` too."""

    model_config = ConfigDict(**_CAMEL, extra="allow")

    contents: list[_Content] = Field(default_factory=list, fail_fast=True)
    system_instruction: _Content | None = None
    tools: list[_Tool] = Field(default_factory=list, fail_fast=True)
    tool_config: _ToolConfig = _ToolConfig()
    generation_config: _GenerationConfig = _GenerationConfig()
    model: str | None = None
    """Said again by some clients; the path names the model."""
    generate_content_request: GenerateRequest | None = None
    """The request whose tokens `countTokens` counts, in place of `contents`."""

    def to_completion_request(self, model: str) -> CompletionRequest:
        """Return the request in every dialect's form.

        Raises:
            ApiError: There is nothing to answer, or a tool, a schema or an answer to a call cannot be.
        """
        if not self.contents:
            raise invalid("contents", "there is nothing to answer")
        messages = _messages(self.contents, self.system_instruction)
        wanted, config = self.generation_config, self.tool_config.function_calling_config
        functions = [one for tool in self.tools for one in tool.function_declarations]
        named = config.allowed_function_names
        if named:
            functions = [one for one in functions if one.name in named]
        choice: Any = {"ANY": "required", "NONE": "none"}.get(config.mode, "auto")
        if choice == "required" and named and len(named) == 1:
            choice = NamedTool(named[0])
        continues = messages[-1]["role"] == "assistant"
        place = len(messages) - 1 if continues else len(messages)
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
        names = plain_names(f"generationConfig.{name}" for name in self.generation_config.ignored())
        return [*super().ignored(), *names, *kinds]


@dataclass
class _Written:
    """Messages as they are put together from contents."""

    messages: list[Json] = field(default_factory=list)
    open_calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and id of the calls that have no answer yet."""

    def model_content(self, parts: Sequence[_ContentPart]) -> None:
        """Add what the model said: to the message before it, if that is the model's."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        message = self.messages[-1]
        for part in parts:
            if part.thought:
                message["reasoning_content"] = message.get("reasoning_content", "") + (part.text or "")
            elif (call := part.function_call) is not None:
                calls = message.setdefault("tool_calls", [])
                call_id = call.id or _call_id(len(self.messages) - 1, len(calls))
                self.open_calls.append((call.name, call_id))
                calls.append(called(call_id, call.name, json.dumps(call.args, ensure_ascii=False)))
            elif part.inline_data is not None or part.function_response is not None:
                raise invalid("contents", "a content of the model's holds text, thoughts and functionCalls alone")
            else:
                message["content"] += part.text or ""

    def user_content(self, parts: Sequence[_ContentPart]) -> None:
        """Add what the user said, and the answers to calls before it."""
        for part in parts:
            if part.function_call is not None:
                raise invalid("contents", "a functionCall is said by the role 'model'")
            if (answer := part.function_response) is not None:
                message = {"role": "tool", "tool_call_id": self._answered(answer), "content": answer.text}
                self.messages.append(message)
        rest = [part for part in parts if part.function_response is None]
        if rest or not parts:
            self.messages.append({"role": "user", "content": joined(rest)})

    def _answered(self, answer: _FunctionResponse) -> str:
        for name, call_id in self.open_calls:
            if answer.id == call_id or (answer.id is None and answer.name == name):
                self.open_calls.remove((name, call_id))
                return call_id
        if answer.id is not None:
            return answer.id
        raise invalid("contents", f"a functionResponse answers {answer.name!r}, which nothing before it calls")


def _messages(contents: Sequence[_Content], system: _Content | None) -> list[Json]:
    written = _Written()
    if system is not None and system.parts:
        written.messages.append({"role": "system", "content": joined(system.parts)})
    for content in contents:
        if content.role == "model":
            written.model_content(content.parts)
        else:
            written.user_content(content.parts)
    return written.messages


def _call_id(place: int, number: int) -> str:
    """Return the id of one call of the message at `place`."""
    return f"call_{place}_{number}"


def json_schema(schema: Any) -> Any:
    """Return the JSON schema that a schema of Google's stands for; one that is a JSON schema already is as it was."""
    if isinstance(schema, list):
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {
        name: _shown(name, value) for name, value in schema.items() if isinstance(value, dict) or name not in _NOT_SHOWN
    }
    if schema.get("nullable") is True and isinstance(kind := shown.get("type"), str):
        shown["type"] = [kind, "null"]
    return shown


def _shown(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    return int(value) if name in _COUNTS and isinstance(value, str) and value.isdecimal() else json_schema(value)
