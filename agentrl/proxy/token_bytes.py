"""The bytes that a token stands for, which may be a part of a character.

ids ─► decoded one by one: "�" "�"        ids ─► bytes: C3, B6 ─► together: "ö"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def bytes_of_tokens(tokenizer: Any) -> Callable[[int], bytes]:
    """Return what says the bytes of an id, as the vocabulary has them where its form is known (bytes as letters, or pieces and bytes).

    Args:
        tokenizer: Of Hugging Face.
    """

    def decoded(token: int) -> bytes:
        return str(tokenizer.decode([token], skip_special_tokens=False)).encode()

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return decoded
    # Its state is its JSON; that of the whole tokenizer takes a while for a large vocabulary.
    kinds = _kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
    written_out = backend.get_added_tokens_decoder()
    letters = _bytes_of_letters()

    def of_token(token: int) -> bytes:
        piece = backend.id_to_token(token)
        if piece is None or token in written_out:
            return decoded(token)
        if "ByteLevel" in kinds and all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        if "ByteFallback" in kinds:
            byte = _BYTE.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else str(piece).replace(_SPACE, " ").encode()
        return decoded(token)

    return of_token


def _kinds(decoder: Any) -> set[str]:
    """Return the types of a decoder and of those in it."""
    if not isinstance(decoder, dict):
        return set()
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", [])))


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary: those that can be seen stand for themselves, the others for 256 and on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
