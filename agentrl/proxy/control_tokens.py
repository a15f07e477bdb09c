"""Control tokens that a text spells: whoever writes `<|im_end|>` in a message has written ten characters, and ended no turn.

message     hi <|im_end|>                            a user spells a control token
marked      hi <~|im_end|>                           ~ is MARK, which goes through any renderer and template
rendered    <|im_start|>user hi <~|im_end|>...       the format's own have no mark
encoded     ^<|im_start|>^user hi <|im_end|>...      by a copy of the tokenizer that spells them with ^, which is OWN
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

MARK = "\ud800"
"""Half of a surrogate pair, which no request holds (`json_text.read_json`), no token stands for and no template writes."""
OWN = secrets.token_hex(8)
"""Drawn anew in each process, so that no text can spell it."""
_TAG = re.compile(r"</?[^\s<>]+>")
MARKED_ROLES = ("system", "user", "tool")


def control_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Return the pattern of a spelled control token; None where there is none.

    It is a token of more than one character that is special, or written as a tag: Qwen's `<think>` and `<tool_call>` are not special.
    """
    added = tokenizer.added_tokens_decoder.values()
    spelled = {str(token) for token in added if (token.special and len(str(token)) > 1) or _TAG.fullmatch(str(token))}
    return re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))) if spelled else None


def marked(messages: Sequence[dict[str, Any]], pattern: re.Pattern[str] | None) -> list[dict[str, Any]]:
    """Return messages in whose contents no control token is spelled any more: a mark stands in each. Those of the model are as they were."""

    def content_of(content: Any) -> Any:
        if isinstance(content, list):
            return [
                {**part, "text": with_marks(part["text"], pattern)} if part.get("text") else part for part in content
            ]
        return with_marks(content, pattern)

    return [
        {**message, "content": content_of(message.get("content"))} if message["role"] in MARKED_ROLES else message
        for message in messages
    ]


@lru_cache(maxsize=64)
def marked_tools(tools: bytes, pattern: re.Pattern[str] | None) -> Any:
    """Return tools, which are given as JSON, with marks in all of their texts. Those of an agent are the same at each of its calls."""
    return with_marks(json.loads(tools), pattern)


def with_marks(value: Any, pattern: re.Pattern[str] | None) -> Any:
    """Return a JSON value with marks in all of its texts."""
    if pattern is None:
        return value
    if isinstance(value, str):
        return pattern.sub(lambda found: found[0][0] + MARK + found[0][1:], value)
    if isinstance(value, list):
        return [with_marks(item, pattern) for item in value]
    return {key: with_marks(item, pattern) for key, item in value.items()} if isinstance(value, dict) else value


def with_own_spellings(backend: Any, pattern: re.Pattern[str]) -> Any:
    """Return a copy of a tokenizer, with the same ids, in which OWN stands before each control token: without it, its spelling is text."""
    return Tokenizer.from_str(re.sub(f'"({pattern.pattern})"', f'"{OWN}\\1"', backend.to_str()))
