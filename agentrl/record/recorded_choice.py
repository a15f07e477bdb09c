"""Replies of the engine as they are kept by the proxy that asked for them and by the store, to be answered again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord, Turn

Key = tuple[str, int]
"""(completion id, choice index), which tells the replies of an episode from each other."""


@dataclass(frozen=True)
class RecordedChoice:
    """One whole reply to one request."""

    request: str
    """Digest of the request."""
    completion_id: str
    choice_index: int
    """Which of the request's `n` replies."""
    tool_call_ids: list[str]
    """Ids of its tool calls."""
    generation: Generation

    @property
    def key(self) -> Key:
        """Return its name among the replies of its episode."""
        return self.completion_id, self.choice_index


@dataclass
class CallLog:
    """The calls of one episode, in which they are looked up when it starts over. This one keeps nothing that is new."""

    choices: Iterable[RecordedChoice]
    made_here: Container[Key] = ()
    """Those of them that this start of the run had made, in a worker that was lost."""
    replayed_tokens: int = 0
    """Tokens that were taken from an earlier start of the run, and so not generated again."""
    _calls: dict[str, deque[dict[int, RecordedChoice]]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        calls: dict[tuple[str, str], dict[int, RecordedChoice]] = defaultdict(dict)
        for choice in self.choices:
            calls[choice.request, choice.completion_id][choice.choice_index] = choice
        for (request, _), choices in calls.items():
            self._calls[request].append(choices)

    def take(self, request: str) -> dict[int, RecordedChoice]:
        """Return the replies to the first call of this request that was not taken yet; none: {}."""
        calls = self._calls.get(request)
        taken = calls.popleft() if calls else {}
        earlier = (choice for choice in taken.values() if choice.key not in self.made_here)
        self.replayed_tokens += sum(len(choice.generation.output_ids) for choice in earlier)
        return taken

    async def commit(self, choice: RecordedChoice) -> None:
        """Commit a reply. Returns when it is safe."""


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
