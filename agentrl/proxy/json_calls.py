"""Read tool calls that are written as JSON, also one whose end has not come, or never comes.

    {"name": "weather", "arguments": {"place": "Ber     ─► BegunCall("weather", '{"place": "Ber')

A client gets the arguments as the model wrote them, in pieces while they grow. What was sent cannot be taken back, so a call that has begun is one, whatever follows:
one that is cut off or malformed has arguments without the brace that closes them, and no client takes them for whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jiter

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
        except ValueError:
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


def readable_part(arguments: str) -> str:
    """Return the longest beginning of a text that JSON may begin with: all of it, unless it is malformed."""
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
        text = json.dumps(arguments, ensure_ascii=False)
        return text if is_unicode(text) else json.dumps(arguments)
    return arguments if isinstance(arguments, str) and is_unicode(arguments) else None


def is_unicode(text: str) -> bool:
    """Return whether a text can be sent: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _begun(text: str) -> Any:
    return jiter.from_json(text.encode(), allow_inf_nan=False, partial_mode=True)


def _may_begin(text: str) -> bool:
    try:
        _begun(text)
    except ValueError:
        return not text.strip()
    return True
