"""Read the tool calls of a chat template: the parser whose reading of a call that the template writes is that call.

    <tool_call>{"name": ..., "arguments": ...}</tool_call>       qwen3         <tool_call><function=...><parameter=...>    qwen3.5
    {"name": ..., "parameters": ...}                             llama-3       <tool_call>...<arg_key>...<arg_value>       glm
    [TOOL_CALLS][{"name": ..., "arguments": ...}]                mistral       <｜tool▁calls▁begin｜>                      deepseek-v3
    [TOOL_CALLS]name[ARGS]{...}                                  mistral

The library `renderers` has those of Qwen, GLM and DeepSeek; the others are here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

from renderers import Renderer
from renderers.base import ParsedToolCall, ToolCallParseStatus
from renderers.parsers import TOOL_PARSERS

ASKED: dict[str, Any] = {"role": "user", "content": "What is 2 + 3?"}
_ARGUMENTS = {"a": 2, "b": "three"}
# Templates of Mistral's take no other ids than of nine letters and digits.
_ADDING = {"name": "add", "arguments": json.dumps(_ARGUMENTS)}
_CALL = {"id": "call00001", "type": "function", "function": _ADDING}
CALLED: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_TYPES = {"a": {"type": "integer", "description": "One."}, "b": {"type": "string", "description": "Another."}}
_ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": _TYPES}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": _ADD}]
_MARKED_VALUE = r"<parameter={0}>\n?(.*?)\n?</parameter>|<arg_key>{0}</arg_key>\s*<arg_value>(.*?)</arg_value>"
_CONSTANTS = {"True": ("boolean", True), "False": ("boolean", False), "None": ("null", None)}


_LLAMA_HEADS = '{"name":"', '{"type":"function","name":"'
"""How a call begins, without blanks: Llama also copies the type from the tools that it is shown."""


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
        return [], _read([text], (0, len(token_ids)))


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
        texts = self._decode(token_ids[begin:]).split("[TOOL_CALLS]")[1:]
        return token_ids[:begin], _read(texts, (begin, len(token_ids)))


def _read(texts: list[str], span: tuple[int, int]) -> list[ParsedToolCall]:
    with suppress(ValueError, KeyError, TypeError):
        found: list[dict[str, Any]] = []
        for text in texts:
            name, separator, arguments = text.partition("[ARGS]")
            value = json.loads(arguments or text)
            value = {"name": name.partition("[CALL_ID]")[0].strip(), "arguments": value} if separator else value
            found += value if isinstance(value, list) else [value]
        for call in found:
            call["arguments"] = dict(call["parameters" if "parameters" in call else "arguments"] or {})
        return [ParsedToolCall("", call["name"], call["arguments"], span) for call in found]
    return [ParsedToolCall("", token_span=span, status=ToolCallParseStatus.INVALID_JSON)]


TOOL_PARSERS.update({"llama-3": LlamaToolParser, "mistral": MistralToolParser})
UNTIL_THE_END = ("llama-3", "mistral")
"""Parsers of calls that end with the reply: what may follow yet makes them none."""


def tool_parser_of(template: Renderer, tokenizer: Any, ends: Collection[int]) -> str | None:
    """Return the name of the parser that reads the tool calls of a chat template; None where none does.

    Args:
        template: What renders it.
        tokenizer: The model's.
        ends: Ids that end the model's turn.
    """
    said: list[int] = []
    with suppress(Exception):  # a template raises what it likes where it takes no such conversation
        prompt = template.render_ids([ASKED], tools=TOOLS, add_generation_prompt=True)
        said = template.render_ids([ASKED, CALLED], tools=TOOLS)
        said = said[next((n for n, pair in enumerate(zip(prompt, said)) if pair[0] != pair[1]), len(prompt)) :]  # noqa: B905
    said = said[: next((n for n, token in enumerate(said) if token in ends), len(said))]
    for name, parser in TOOL_PARSERS.items():
        with suppress(Exception):
            if [(call.name, call.arguments) for call in parser(tokenizer).extract(said)[1]] == [("add", _ARGUMENTS)]:
                return str(name)
    return None


def typed_call(call: ParsedToolCall, tools: list[dict[str, Any]] | None) -> ParsedToolCall:
    """Return a call between tags, whose values have no quotes, with each as its tool takes it: as text, or as True, False and None, which templates write as Python does."""
    broken = call.status not in (ToolCallParseStatus.OK, ToolCallParseStatus.INVALID_JSON)
    if broken or not isinstance(call.arguments, dict):
        return call
    functions = [tool["function"] for tool in tools or () if tool["function"]["name"] == call.name]
    types = (functions[0].get("parameters") or {}).get("properties") or {} if functions else {}
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
    kinds = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    return kinds.union(*map(_kinds, schema.get("anyOf") or ()))
