"""JSON from outside, read and written so that it raises only errors that are expected.

Python's own reader takes NaN, lone surrogates and any depth, each of which fails later and elsewhere: in the tokenizer, in a
client, on the stack. The one here refuses them, and raises ValueError alone.
"""

from __future__ import annotations

import json
from typing import Any

import jiter
import pydantic_core


def read_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is anything else: also NaN, a repeated key, a lone surrogate, bytes that are no UTF-8, more than 4,300
            digits, and more than 200 levels, which is far below Python's limit of recursion, whatever walks a value after it.
    """
    data = text.encode() if isinstance(text, str) else text
    return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)


def to_json(value: Any) -> bytes:
    """Write JSON. What JSON has no number for is null."""
    return pydantic_core.to_json(value, inf_nan_mode="null")


def strict_json(value: Any) -> bytes:
    """Write JSON that every reader takes: what it has no number for is null, and half of a surrogate pair is replaced."""
    try:
        return to_json(value)
    except ValueError:
        return to_json(json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace")))
