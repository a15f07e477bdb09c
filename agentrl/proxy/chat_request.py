"""The body of `/v1/chat/completions`: what is supported is read, everything else is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.proxy.api_error import ApiError

Json = dict[str, Any]


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _FunctionCall(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: _FunctionCall


class _Message(BaseModel):
    # Clients send replies back as they got them, with fields (refusal, annotations, audio: null) that mean nothing here.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message with role 'tool' needs 'tool_call_id'")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a message with role '{self.role}' needs 'content'")
        return self

    def to_json(self) -> Json:
        message = self.model_dump(exclude_none=True)
        if self.role == "developer":
            message["role"] = "system"
        content = self.content
        message["content"] = "".join(p.text for p in content) if isinstance(content, list) else content or ""
        return message


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: Literal[False] | None = None


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: _NamedFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class _TextFormat(BaseModel):
    type: Literal["text"]


class ChatRequest(BaseModel):
    """OpenAI's request, as far as it is supported. Any other field is refused by name."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None

    # These only label a request, or are supported at their neutral value alone.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: Literal[False] | None = None
    response_format: _TextFormat | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


def parse_request(body: bytes) -> ChatRequest:
    """Check a request body. Raises ApiError 400 that names the field at fault."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic also names the member of a union it tried, such as `str` or `list[str]`.
        place = [part for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part.islower())]
        place = [part for part in place if part != "str"]
        param = ".".join(map(str, place)) or None
        if first["type"] == "extra_forbidden":
            raise ApiError(
                400, f"Unsupported parameter: '{param}'.", param=param, code="unsupported_parameter"
            ) from None
        raise ApiError(
            400, f"Invalid '{param or 'body'}': {first['msg']}.", param=param, code="invalid_value"
        ) from None
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    if any(not text for text in request.stop_strings):
        raise ApiError(400, "Invalid 'stop': a stop string is empty.", param="stop", code="invalid_value")
    names = [tool.function.name for tool in request.tools or []]
    choice = request.tool_choice
    if choice not in (None, "auto", "none") and not names:
        raise ApiError(400, "'tool_choice' needs 'tools'.", param="tool_choice", code="invalid_value")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"'tool_choice' names {choice.function.name!r}; the tools are {names}."
        raise ApiError(400, message, param="tool_choice", code="invalid_value")
    if request.stream_options and not request.stream:
        raise ApiError(400, "'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
    return request
