"""The model calls of an episode, kept as they happen, so that the episode can start over without making them again.

    request ─► digest ─┬─ recorded ─► the recorded reply, at once, token for token
                       └─ new      ─► generated

A request is known by what the engine was asked: ids, images, sampling, tools and the role that asked. Equal requests get
the recorded replies in their order. What an episode does not ask again is not part of its record.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pydantic_core

from agentrl.engine.protocol import Sampling
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.record.trajectory import TokenRecord, Turn


class CallLog(Protocol):
    """The log of one episode's calls, in which they are looked up when the episode starts over."""

    @property
    def choices(self) -> Iterable[RecordedChoice]:
        """The recorded replies that the episode started with."""
        ...

    replayed_tokens: int
    """Tokens of the record that were recorded before, and so not generated again."""

    def take(self, request: str) -> dict[int, RecordedChoice]:
        """Return the recorded replies to a request, by choice; each recorded call is handed out once."""
        ...

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a whole reply. Returns when it is safe."""
        ...


@dataclass
class RecordedCalls:
    """Recorded replies, to be taken by their requests."""

    choices: Iterable[RecordedChoice]
    replayed_tokens: int = 0
    """Tokens of the record that were recorded before, and so not generated again."""
    _calls: dict[str, deque[dict[int, RecordedChoice]]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        by_id: dict[tuple[str, str], dict[int, RecordedChoice]] = {}
        for choice in self.choices:
            key = (choice.request, choice.completion_id)
            if key not in by_id:
                by_id[key] = {}
                self._calls[choice.request].append(by_id[key])
            by_id[key][choice.choice_index] = choice

    def take(self, request: str) -> dict[int, RecordedChoice]:
        """Return the replies to the first call of this request that was not taken yet; none: {}."""
        calls = self._calls.get(request)
        return calls.popleft() if calls else {}


def request_digest(
    input_ids: RollingDigest, images: Sequence[ImageSpan], sampling: Sampling, tools: Any, role: str
) -> str:
    """Return what tells one request from another, from the digest of its ids on."""
    return input_ids.with_bytes(pydantic_core.to_json([images, vars(sampling), tools, role])).value.hex()


def digest_of_several(digests: Sequence[str]) -> str:
    """Return what tells a request of several prompts from another, from the digests of its prompts."""
    return RollingDigest().with_text("".join(digests)).value.hex()


def recorded_choices(record: TokenRecord) -> list[RecordedChoice]:
    """Return the calls of a finished episode, to be answered again."""
    return [recorded_choice(turn) for turn in record.turns]


def recorded_choice(turn: Turn) -> RecordedChoice:
    """Return a recorded turn as the reply that it was."""
    generation = Generation(
        output_ids=turn.output_ids,
        logprobs=turn.logprobs,
        versions=turn.versions,
        finish="length" if turn.truncated else "stop",
    )
    return RecordedChoice(turn.request, turn.completion_id, turn.choice_index, list(turn.tool_call_ids), generation)
