"""Find the recorded reply that a raw prompt extends, in one pass over the prompt.

recorded   abc          ─► 3: digest of abc
           abcdef       ─► 6: digest of abcdef
asked      abcdefgh     ─► the rolling digest at 3, at 6: the longest that is known is abcdef
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.trajectory import Turn


@dataclass(frozen=True)
class Found:
    """The recorded reply that a raw prompt extends."""

    length: int
    """Bytes of the prompt that are recorded; 0: none."""
    turn: Turn | None
    digest: RollingDigest
    """The digest of the whole prompt."""


class Recorded:
    """An index of what raw prompts may extend: texts or ids up to and including a reply, each with the turn that made the reply.

    Only digests of them are kept.
    """

    def __init__(self) -> None:
        self._turns: dict[bytes, Turn] = {}
        self._lengths: list[int] = []
        """The lengths that occur, in order."""

    def add(self, content: RollingDigest, turn: Turn) -> None:
        """Note that `turn` ends the content of this digest. Of choices of the same content, the first is kept."""
        known = self._turns.get(content.value)
        if known is None:
            if content.length not in self._lengths:
                insort(self._lengths, content.length)
            self._turns[content.value] = turn
        elif turn.choice_index < known.choice_index:
            self._turns[content.value] = turn

    def longest(self, content: bytes) -> Found:
        """Return the longest that `content` begins with."""
        length, turn = 0, None
        rolling, view = RollingDigest(), memoryview(content)
        for known in self._lengths:
            if known > len(content):
                break
            rolling = rolling.with_bytes(view[rolling.length : known])
            if (found := self._turns.get(rolling.value)) is not None:
                length, turn = known, found
        return Found(length, turn, rolling.with_bytes(view[rolling.length :]))
