"""Find the recorded turn that a request continues: by its messages, or by the text or ids of a raw prompt.

messages   tools ─► user ─► assistant (turn 1) ─► tool ─► assistant (turn 2)      a tree, one node a message; a request is a walk from its root
                                              └─► user ─► ...
raw        abc ─► digest at 3: turn 1;   abcdef ─► at 6: turn 2                    one pass over abcdefgh finds turn 2

A client sends all of a conversation with every request. A message that it sent before is compared with that one, which costs less than to digest
it again.
"""

from __future__ import annotations

import hashlib
import json
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import pydantic_core

from agentrl.proxy.chat_format import Message
from agentrl.proxy.tool_calls import values_so_far
from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.trajectory import Turn


@dataclass(eq=False, repr=False)
class MessageNode:
    """A conversation up to one message, as a session's requests and replies have it."""

    turn: Turn | None = None
    """The recorded turn that the conversation ends with."""
    _children: dict[bytes, MessageNode] = field(default_factory=dict)
    """Digest of what one more message means -> the conversation with it."""
    _last: tuple[Message, MessageNode] | None = None
    """The message that came next last, and the conversation with it."""

    def after(self, messages: Iterable[Message]) -> MessageNode:
        """Return the conversation with more messages."""
        node = self
        for message in messages:
            last = node._last  # read once: other requests of the session may be in threads
            if last is None or last[0] != message:
                last = node._last = message, node._children.setdefault(_meaning(message), MessageNode())
            node = last[1]
        return node

    def end_with(self, turn: Turn) -> None:
        """Note that the conversation ends with `turn`."""
        if _comes_before(turn, self.turn):
            self.turn = turn


@dataclass(frozen=True)
class PrefixMatch:
    """The recorded reply that a raw prompt extends."""

    length: int
    """Bytes of the prompt that are recorded; 0: none."""
    turn: Turn | None
    digest: RollingDigest
    """The digest of the whole prompt."""


class PrefixIndex:
    """An index of the texts or ids that raw prompts may extend, each up to and including a reply, by their digests."""

    def __init__(self) -> None:
        self._turns: dict[bytes, Turn] = {}
        self._lengths: list[int] = []
        """The lengths that occur, in order."""

    def add(self, content: RollingDigest, turn: Turn) -> None:
        """Note that `turn` ends the content of this digest."""
        if content.length not in self._lengths:
            insort(self._lengths, content.length)
        if _comes_before(turn, self._turns.get(content.value)):
            self._turns[content.value] = turn

    def longest(self, content: bytes) -> PrefixMatch:
        """Return the longest that `content` begins with."""
        length, turn = 0, None
        rolling, view = RollingDigest(), memoryview(content)
        for known in self._lengths:
            if known > len(content):
                break
            rolling = rolling.with_bytes(view[rolling.length : known])
            if (found := self._turns.get(rolling.value)) is not None:
                length, turn = known, found
        return PrefixMatch(length, turn, rolling.with_bytes(view[rolling.length :]))


def _comes_before(turn: Turn, known: Turn | None) -> bool:
    """Return whether `turn` is continued where `known` says the same: the newest request is, and of its choices the first, whichever ended last."""
    return known is None or turn.completion_id != known.completion_id or turn.choice_index < known.choice_index


def _meaning(message: Message) -> bytes:
    """Return a digest of what a message means, not of how a client or a dialect spells it.

    Null fields, an empty text and reasoning that the client dropped make no difference.
    """
    calls = [
        (call.get("id"), call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    named = (message.get(name) for name in ("tool_call_id", "name", "tools", "options"))
    meaning = pydantic_core.to_json((message["role"], message.get("content") or "", calls, *named))
    return hashlib.blake2b(meaning, digest_size=16).digest()


def _arguments(text: str) -> str:
    """Return the arguments of a call as JSON that is the same however a client sends them back.

    Spaces make no difference, nor whether 2.0 comes back as 2, and malformed arguments as the values in them.
    """
    return json.dumps(json.loads(json.dumps(values_so_far(text)), parse_int=float), sort_keys=True)
