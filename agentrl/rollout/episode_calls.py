"""The model calls of one attempt, so that it goes on in another worker when it loses its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import beginning, join_generations
from agentrl.rollout.call_log_writer import EpisodeCallLog
from agentrl.rollout.packed_record import Key, StoredCall


@dataclass(eq=False)
class EpisodeCalls:
    """The model calls of one attempt, in whichever workers it ran."""

    call_log: EpisodeCallLog | None
    calls: dict[Key, StoredCall] = field(default_factory=dict)
    """The newest state of each."""
    _growing: dict[Key, RecordedChoice] = field(default_factory=dict)
    """Those that are not whole, as far as a worker has told of them."""

    def __post_init__(self) -> None:
        if self.call_log is not None:
            self.calls |= self.call_log.kept

    def recorded(self) -> list[StoredCall]:
        """Return the replies that need not be generated again, whole or in part."""
        self._growing.clear()  # by the worker that was told of them; the next one begins anew
        return [call for call in self.calls.values() if call.has_tokens]

    def keep(self, call: StoredCall, committed: Callable[[], object]) -> None:
        """Keep a whole reply. `committed` is called when it is safe."""
        self._growing.pop(call.key, None)
        self.calls[call.key] = call
        if self.call_log is not None:
            self.call_log.put(call, committed)
        else:
            committed()

    def grow(self, choice: RecordedChoice, kept: int) -> None:
        """Note what a reply has gained.

        Args:
            choice: The reply, with the tokens that are new.
            kept: How many of its tokens so far stay; the new ones follow.
        """
        key = choice.completion_id, choice.choice_index
        if kept:
            if (known := self._growing.get(key)) is None or len(known.generation.output_ids) < kept:
                return  # it is whole by now, or of what it goes on from, nothing is known here
            joined = join_generations(beginning(known.generation, kept, "abort"), choice.generation)
            choice = replace(choice, generation=joined)
        elif (whole := self.calls.get(key)) is not None and whole.content[7] != "abort":
            return
        self._growing[key] = choice
        call = self.calls[key] = StoredCall.of(choice)
        if self.call_log is not None:
            self.call_log.put(call)
