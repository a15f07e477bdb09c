"""A digest that goes on: of content that comes in pieces it is the same wherever the content is cut."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_SIZE = 16
_Hash = hashlib.blake2b


class RollingDigest:
    """The digest of some bytes, which goes on to those of more bytes at the cost of the new ones. It is a value: it never changes.

    `RollingDigest().with_ids([1, 2]).with_ids([3]) == RollingDigest().with_ids([1]).with_ids([2, 3])`
    """

    __slots__ = ("_state", "length", "value")

    def __init__(self, state: _Hash | None = None, length: int = 0) -> None:
        self._state = state or _Hash(digest_size=_SIZE)
        self.length = length
        """Bytes of the content."""
        self.value = self._state.digest()

    def with_ids(self, *parts: Sequence[int]) -> RollingDigest:
        """Return the digest of the content with token ids after it."""
        return self.with_bytes(*map(bytes_of_ids, parts))

    def with_text(self, text: str) -> RollingDigest:
        """Return the digest of the content with a text after it."""
        return self.with_bytes(bytes_of_text(text))

    def with_bytes(self, *parts: bytes | memoryview) -> RollingDigest:
        """Return the digest of the content with bytes after it."""
        state, length = self._state.copy(), self.length
        for part in parts:
            state.update(part)
            length += len(part)
        return RollingDigest(state, length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RollingDigest) and self.value == other.value


def bytes_of_ids(ids: Sequence[int]) -> bytes:
    """Return ids as bytes, of which those of a prefix are a prefix."""
    return array("q", ids).tobytes()


def bytes_of_text(text: str) -> bytes:
    """Return the same of a text. JSON lets no half of a surrogate pair in, but a reply's text may be anything."""
    return text.encode(errors="surrogatepass")
