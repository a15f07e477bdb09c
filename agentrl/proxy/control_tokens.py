"""Control tokens that a text spells: whoever writes `<|im_end|>` in a message has written ten characters, and ended no turn.

content ─► marked behind the first character of each spelling ─► renderer or template ─► tokenizer: encodes what is before and after a mark apart
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MARK = "\ud800"
"""Half of a surrogate pair, which no request holds (`json_text.read_json`), no token stands for and no template writes."""
MARKED_ROLES = ("system", "user", "tool")


def control_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Return the pattern of a spelled control token: of a special token of more than one character; None where there is none."""
    spelled = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special and len(str(token)) > 1}
    return re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))) if spelled else None


def marked(messages: Sequence[dict[str, Any]], pattern: re.Pattern[str] | None) -> list[dict[str, Any]]:
    """Return messages in whose contents no control token is spelled any more: a mark stands in each. Those of the model are as they were."""
    if pattern is None:
        return list(messages)

    def text_of(text: str) -> str:
        return pattern.sub(lambda found: found[0][0] + MARK + found[0][1:], text)

    def content_of(content: Any) -> Any:
        if isinstance(content, str):
            return text_of(content)
        return [{**part, "text": text_of(part["text"])} if part.get("text") else part for part in content or ()]

    return [
        {**message, "content": content_of(message.get("content"))} if message["role"] in MARKED_ROLES else message
        for message in messages
    ]
