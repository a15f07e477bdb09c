"""Read tool calls that are written as JSON, also one whose end has not come, or never comes.

    {"name": "weather", "arguments": {"place": "Ber     ─► BegunCall("weather", '{"place": "Ber')

A client gets the arguments as the model wrote them, in pieces while they grow. What was sent cannot be taken back, so a call that has begun is one, whatever follows:
one that is cut off or malformed has arguments without the brace that closes them, and no client takes them for whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jiter

from agentrl.proxy.json_text import MAX_JSON_DEPTH, read_json, too_deep

_OBJECT_DEPTH = MAX_JSON_DEPTH - 20
"""Levels of arguments that clients get as an object: they send them back in a body that is no deeper than the whole bound."""
_AROUND = "[" * (MAX_JSON_DEPTH - _OBJECT_DEPTH)
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING}")\s*,\s*"arguments"\s*:\s*(?=\{{)', re.DOTALL)
_STRING_OR_BRACKET = re.compile(rf'{_STRING}(?:"|\\?\Z)|[{{}}\[\]]', re.DOTALL)


@dataclass(frozen=True)
class BegunCall:
    """A call of a tool, up to the brace that closes its arguments."""

    name: str
    arguments: str
    closed: bool
    """Whether that brace is there."""

    def whole_as(self, name: object, arguments: object) -> str | None:
        """Return the arguments with their brace, where a reader of the whole call found the same in it; None: they are not whole."""
        if not self.closed or name != self.name or not isinstance(arguments, dict):
            return None
        text = self.arguments + "}"
        try:
            # As text, in which what is no number is like itself.
            return text if json.dumps(json.loads(text)) == json.dumps(arguments) else None
        except (ValueError, RecursionError):
            return None


def begun_call(text: str, names: Collection[str]) -> BegunCall | None:
    """Return the call that a text is or begins with; None where it is not yet, or is no call of one of `names` whose arguments are an object."""
    head = _HEAD.match(text)
    if head is None:
        return None
    try:
        name = json.loads(head[1])
    except ValueError:
        return None
    if name not in names:
        return None
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text, head.end()):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth == 0 and found[0] in ("}", "]"):
            return BegunCall(name, text[head.end() : found.start()], closed=found[0] == "}")
    return BegunCall(name, text[head.end() :], closed=False)


def object_of(arguments: str) -> Any:
    """Read whole arguments for a client that gets them as an object.

    Raises:
        ValueError: They are no JSON, or too deep for it to send them back.
    """
    if _too_deep(arguments):
        raise ValueError("nested too deeply")
    return read_json(arguments)


def readable_part(arguments: str) -> str:
    """Return the longest beginning of a text that JSON may begin with: all of it, unless it is malformed, or too deep for an object to be sent back."""
    if _may_begin(arguments):
        return arguments
    whole, broken = 0, len(arguments)
    while broken - whole > 1:
        middle = (whole + broken) // 2
        if _may_begin(arguments[:middle]):
            whole = middle
        else:
            broken = middle
    return arguments[:whole]


def values_so_far(arguments: str) -> dict[str, Any]:
    """Return the values that are whole in arguments that may be cut off or malformed, as Anthropic's clients read a stream of them."""
    part = readable_part(arguments)
    value = _begun(part) if part.strip() else None
    return value if isinstance(value, dict) else {"arguments": arguments}


def arguments_text(arguments: object) -> str | None:
    """Return arguments as JSON text; None for what cannot be arguments.

    A lone surrogate, which the model may escape and no client could read, stays escaped.
    """
    if isinstance(arguments, dict):
        try:
            text = json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            return None
        return text if is_unicode(text) else json.dumps(arguments)
    return arguments if isinstance(arguments, str) and is_unicode(arguments) else None


def without_unreadable_calls(
    ids: Sequence[int], opening: int, closing: int, decode: Callable[[list[int]], str]
) -> list[int]:
    """Return a reply in which calls that make a reader of JSON fail begin with what is no JSON, so that they are malformed as others are.

    Args:
        ids: [token] the reply.
        opening: The id that opens a call.
        closing: The id that closes one.
        decode: Returns the text of ids.
    """
    readable, begin = list(ids), 0
    while opening in readable[begin:]:
        begin = readable.index(opening, begin) + 1
        if closing not in readable[begin + 1 :]:
            break
        end = readable.index(closing, begin + 1)
        if _is_unreadable(decode(readable[begin:end])):
            readable[begin] = opening
        begin = end
    return readable


def is_unicode(text: str) -> bool:
    """Return whether a text can be sent: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_unreadable(text: str) -> bool:
    """Return whether a text makes Python's reader of JSON fail otherwise than over what is no JSON: it is too deep, or has too long a number."""
    if too_deep(text):
        return True
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except ValueError:
        return True
    return False


def _begun(text: str) -> Any:
    return jiter.from_json(text.encode(), allow_inf_nan=False, partial_mode=True)


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= _OBJECT_DEPTH:
        return False
    try:
        _begun(_AROUND + text)
    except ValueError as error:
        return str(error).startswith("recursion limit")
    return False


def _may_begin(text: str) -> bool:
    if _too_deep(text):
        return False
    try:
        _begun(text)
    except ValueError:
        return not text.strip()
    return True
