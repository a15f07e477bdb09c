"""The model calls of one attempt, so that it goes on in another worker when it loses its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from agentrl.engine.protocol import PartialGeneration
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation
from agentrl.rollout.call_log_writer import EpisodeCallLog
from agentrl.rollout.packed_record import Key, StoredCall

_NOTHING = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")


@dataclass(eq=False)
class EpisodeCalls:
    """The model calls of one attempt, in whichever workers it ran."""

    call_log: EpisodeCallLog | None
    calls: dict[Key, StoredCall] = field(default_factory=dict)
    """The newest state of each."""
    _unkept: set[Key] = field(default_factory=set)
    """Whole replies that the worker was sent and has not asked to keep yet."""

    def __post_init__(self) -> None:
        if self.call_log is not None:
            self.calls |= self.call_log.kept

    def add(self, choice: RecordedChoice) -> None:
        """Note what a reply has; a later state replaces the earlier one, in its place."""
        call = StoredCall.of(choice)
        self.calls[call.key] = call

    def recorded(self) -> list[StoredCall]:
        """Keep what a lost worker did not live to keep. Return the replies that need not be generated again, whole or in part."""
        for key in list(self._unkept):
            self.keep(self.calls[key], lambda: None)
        return [call for call in self.calls.values() if call.has_tokens]

    def keep(self, call: StoredCall, committed: Callable[[], object]) -> None:
        """Keep a whole reply. `committed` is called when it is safe."""
        self.calls[call.key] = call
        self._unkept.discard(call.key)
        if self.call_log is not None:
            self.call_log.put(call, committed)
        else:
            committed()

    def generated(self, choice: RecordedChoice, generation: Generation) -> None:
        """Note a whole reply. The worker reads it, and then asks to keep it."""
        self.add(replace(choice, generation=generation))
        self._unkept.add((choice.completion_id, choice.choice_index))

    @contextmanager
    def watch(self, choice: RecordedChoice, partial: PartialGeneration) -> Iterator[None]:
        """Keep what a reply has so far, if it is broken off."""
        self.add(replace(choice, generation=partial.start or _NOTHING))
        with self.call_log.watch(choice, partial) if self.call_log else nullcontext():
            try:
                yield
            except BaseException:
                so_far = partial.so_far() if partial.so_far else partial.start
                if so_far is not None and so_far.finish == "abort":
                    self.add(replace(choice, generation=so_far))
                raise
