"""Read the tool calls of a reply, also one whose end has not come, or never comes.

    <tool_call>{"name": ..., "arguments": ...}</tool_call>       qwen3         <tool_call><function=...><parameter=...>    qwen3.5
    {"name": ..., "parameters": ...}                             llama-3       <tool_call>...<arg_key>...<arg_value>       glm
    [TOOL_CALLS][{"name": ..., "arguments": ...}]                mistral       <｜tool▁calls▁begin｜>                      deepseek-v3
    [TOOL_CALLS]name[ARGS]{...}                                  mistral

The library `renderers` has the parsers of Qwen, GLM and DeepSeek; the others are here.

    {"name": "weather", "arguments": {"place": "Ber     ─► BegunCall("weather", '{"place": "Ber')

A client gets arguments in JSON as the model wrote them, in pieces while they grow. What was sent cannot be taken back, so a call that
has begun is one, whatever follows: one that is cut off or malformed has arguments without the brace that closes them, and no client
takes them for whole.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jiter
from renderers.base import ParsedToolCall, ToolCallParseStatus
from renderers.parsers import TOOL_PARSERS

from agentrl.proxy.http_messages import read_json

_LLAMA_HEADS = '{"name":"', '{"type":"function","name":"'
"""How a call begins, without blanks: Llama also copies the type from the tools that it is shown."""
_MARKED_VALUE = r"<parameter={0}>\n?(.*?)\n?</parameter>|<arg_key>{0}</arg_key>\s*<arg_value>(.*?)</arg_value>"
_CONSTANTS = {"True": ("boolean", True), "False": ("boolean", False), "None": ("null", None)}
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*+")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)
_BODY_AROUND = "[" * 20
"""As many levels as a body has around arguments that come back as an object: beyond, readers of JSON give up."""


@dataclass(frozen=True)
class BegunCall:
    """A call of a tool, up to the brace that closes its arguments."""

    name: str
    arguments: str
    value: Any = None
    """The arguments as they are read; None: they are not whole."""

    def whole_as(self, name: object, arguments: object) -> str | None:
        """Return the arguments with their brace, where a reader of the whole call found the same in it; None: they are not whole."""
        is_same = self.value is not None and (name, arguments) == (self.name, self.value)
        return self.arguments + "}" if is_same else None


def begun_call(text: str, names: Collection[str]) -> BegunCall | None:
    """Return the call in JSON that a text is or begins with; None where it is not yet, or is no call of one of `names` whose arguments are an object."""
    head = _HEAD.match(text)
    if head is None:
        return None
    with suppress(ValueError):
        name = json.loads(head[1])
        if name not in names:
            return None
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(text, head.end())
            return BegunCall(name, text[head.end() : end - 1], value)
        return BegunCall(name, text[head.end() :])
    return None


def arguments_text(name: object, arguments: object) -> str | None:
    """Return the arguments of a whole call as JSON text; None where they or its name cannot be sent, as half of a surrogate pair cannot."""
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        return None
    with suppress(ValueError, RecursionError):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        (name + text).encode()
        return text
    return None


def readable_part(arguments: str) -> str:
    """Return the longest beginning of a text that JSON may begin with: all of it, unless it is malformed or nested beyond what readers take."""
    if _may_begin(arguments):
        return arguments
    broken = bisect.bisect_left(range(len(arguments)), True, key=lambda end: not _may_begin(arguments[:end]))
    return arguments[: broken - 1]


def values_so_far(arguments: str) -> dict[str, Any]:
    """Return arguments as an object, as Anthropic's and Google's clients get them: the values that are whole, where they are cut off or malformed."""
    with suppress(ValueError):
        value = _begun(readable_part(arguments))
        return value if isinstance(value, dict) else {"arguments": read_json(arguments)}
    return {"arguments": arguments}


def _begun(text: str) -> Any:
    return jiter.from_json(text.encode(), allow_inf_nan=False, partial_mode=True)


def _may_begin(text: str) -> bool:
    with suppress(ValueError):
        _begun(_BODY_AROUND + text)
        return True
    return False


def typed_call(call: ParsedToolCall, tools: list[dict[str, Any]] | None) -> ParsedToolCall:
    """Return a call between tags, whose values have no quotes, with each as its tool takes it: as text, or as True, False and None, which templates write as Python does."""
    broken = call.status not in (ToolCallParseStatus.OK, ToolCallParseStatus.INVALID_JSON)
    if broken or not isinstance(call.arguments, dict):
        return call
    schemas = [tool["function"].get("parameters") for tool in tools or () if tool["function"]["name"] == call.name]
    types = (schemas[0] or {}).get("properties") or {} if schemas else {}
    values = dict(call.arguments)
    for key, value in call.arguments.items():
        kinds, found = _kinds(types.get(key)), re.search(_MARKED_VALUE.format(re.escape(key)), call.raw, re.DOTALL)
        if found and kinds - {"null"} == {"string"} and (value not in (None, "None") or "null" not in kinds):
            values[key] = found[1] if found[2] is None else found[2]
        elif found and isinstance(value, str) and (constant := _CONSTANTS.get(value)) and constant[0] in kinds:
            values[key] = constant[1]
    return replace(call, arguments=values, status=ToolCallParseStatus.OK)


def _kinds(schema: Any) -> set[str]:
    """Return the names of the types that a JSON schema names: pydantic's of `str | None` has two."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    return {*(named if isinstance(named, list) else [named])}.union(*map(_kinds, schema.get("anyOf") or ())) - {None}


class LlamaToolParser:
    """Llama 3's call: the whole reply, perhaps after <|python_tag|>."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode = tokenizer.decode

    def extract(self, token_ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """Return what comes before the call, and the call; a malformed one if it cannot be read."""
        text = self._decode(token_ids).strip().removeprefix("<|python_tag|>")
        begun = "".join(text.split())
        if not begun or not any(begun.startswith(head) or head.startswith(begun) for head in _LLAMA_HEADS):
            return token_ids, []
        return [], _calls_of(lambda: [json.loads(text)], (0, len(token_ids)))


class MistralToolParser:
    """Mistral's calls: a list of them in JSON, or each with its name before [ARGS]."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode = tokenizer.decode
        self._opening = tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")

    def extract(self, token_ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """Return what comes before the calls, and these; one that is malformed if they cannot be read."""
        if self._opening not in token_ids:
            return token_ids, []
        begin = token_ids.index(self._opening)

        def read() -> list[Any]:
            found: list[Any] = []
            for text in self._decode(token_ids[begin:]).split("[TOOL_CALLS]")[1:]:
                name, separator, arguments = text.partition("[ARGS]")
                value = json.loads(arguments or text)
                found += [{"name": name.partition("[CALL_ID]")[0].strip(), "arguments": value}] if separator else value
            return found

        return token_ids[:begin], _calls_of(read, (begin, len(token_ids)))


def _calls_of(read: Callable[[], list[Any]], span: tuple[int, int]) -> list[ParsedToolCall]:
    with suppress(ValueError, KeyError, TypeError):
        return [
            ParsedToolCall(
                "", call["name"], dict(call["parameters" if "parameters" in call else "arguments"] or {}), span
            )
            for call in read()
        ]
    return [ParsedToolCall("", token_span=span, status=ToolCallParseStatus.INVALID_JSON)]


TOOL_PARSERS.update({"llama-3": LlamaToolParser, "mistral": MistralToolParser})
