"""Long text without its middle: what matters stands at its ends."""

from __future__ import annotations


def cut_middle(text: str, max_chars: int) -> str:
    """Return a text as it is, or if it is too long both its ends, with a line between them that says how much is left out.

    Args:
        text: The text.
        max_chars: Characters that are kept at most.
    """
    if len(text) <= max_chars:
        return text
    kept = max_chars // 2
    return f"{text[:kept]}\n[{len(text) - 2 * kept:,} characters left out]\n{text[len(text) - kept :]}"
