"""The bytes that a token stands for, which may be a part of a character.

ids ─► decoded one by one: "�" "�"        ids ─► bytes: C3, B6 ─► together: "ö"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from agentrl.record.tokens import Generation

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_REMEMBERED = 2**15
"""Tokens of which the bytes are remembered."""


def bytes_of_tokens(tokenizer: Any) -> Callable[[int], bytes]:
    """Return what says the bytes of an id, as the vocabulary has them where its form is known (bytes as letters, or pieces and bytes).

    Args:
        tokenizer: Of Hugging Face.
    """
    backend = tokenizer.backend_tokenizer
    written_out = backend.get_added_tokens_decoder()
    has_bytes = backend.token_to_id("<0x0A>") is not None
    letters = _bytes_of_letters()

    @lru_cache(_REMEMBERED)
    def of_token(token: int) -> bytes:
        piece = None if token in written_out else backend.id_to_token(token)
        if piece is not None and has_bytes:
            byte = _BYTE.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else str(piece).replace(_SPACE, " ").encode()
        if piece is not None and all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        return str(tokenizer.decode([token], skip_special_tokens=False)).encode()

    return of_token


def logprob_entries(generation: Generation, bytes_of: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """Return the logprobs of a reply as OpenAI writes them, one entry a token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = bytes_of(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    tops = generation.top_logprobs or [[]] * len(generation.output_ids)
    return [
        {**entry(token, logprob), "top_logprobs": [entry(other, value) for value, other in top]}
        for token, logprob, top in zip(generation.output_ids, generation.logprobs, tops, strict=True)
    ]


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary: those that can be seen stand for themselves, the others for 256 and on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
