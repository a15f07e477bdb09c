"""Which recorded reply a raw prompt goes on from, found in one pass over the prompt.

recorded   abc          ─► 3: digest of abc
           abcdef       ─► 6: digest of abcdef
asked      abcdefgh     ─► the rolling digest at 3, at 6: the longest that is known is abcdef
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import insort
from collections.abc import Sequence

from agentrl.record.trajectory import Turn


class Recorded:
    """What raw prompts may go on from: texts or ids up to and including a reply, as bytes, each with the turn that made the reply.
    Only digests of them are kept."""

    def __init__(self) -> None:
        self._turns: dict[bytes, Turn] = {}
        self._lengths: list[int] = []
        """Those that occur, in order."""

    def add(self, content: bytes, turn: Turn) -> None:
        """Note that `turn` ends what `content` is. Of choices of the same content, the first is kept."""
        digest = _digest(content).digest()
        known = self._turns.get(digest)
        if known is None:
            if len(content) not in self._lengths:
                insort(self._lengths, len(content))
            self._turns[digest] = turn
        elif turn.choice_index < known.choice_index:
            self._turns[digest] = turn

    def longest(self, content: bytes) -> tuple[int, Turn | None]:
        """The length and the turn of the longest that `content` begins with; 0 and None for none."""
        found: tuple[int, Turn | None] = (0, None)
        rolling, done, view = _digest(), 0, memoryview(content)
        for length in self._lengths:
            if length > len(content):
                break
            rolling.update(view[done:length])
            done = length
            if (turn := self._turns.get(rolling.digest())) is not None:
                found = (length, turn)
        return found


def bytes_of_ids(ids: Sequence[int]) -> bytes:
    """Ids as bytes, of which those of a prefix are a prefix."""
    return array("q", ids).tobytes()


def bytes_of_text(text: str) -> bytes:
    """The same of a text. JSON lets no half of a surrogate pair in, but a reply's text may be anything."""
    return text.encode(errors="surrogatepass")


def _digest(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)
