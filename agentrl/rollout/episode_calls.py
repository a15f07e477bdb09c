"""The model calls of one attempt, so that it goes on in another worker when it loses its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from agentrl.engine.protocol import PartialGeneration
from agentrl.proxy import CallLog
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation

_NOTHING = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")


@dataclass(eq=False)
class EpisodeCalls:
    """The model calls of one attempt, in whichever workers it ran."""

    call_log: CallLog | None
    _choices: dict[tuple[str, int], RecordedChoice] = field(default_factory=dict)
    _unkept: set[tuple[str, int]] = field(default_factory=set)
    """Whole replies that the worker was sent and has not asked to keep yet."""

    def __post_init__(self) -> None:
        for choice in self.call_log.choices if self.call_log else ():
            self.add(choice)

    def add(self, choice: RecordedChoice) -> None:
        """Note what a reply has; a later state replaces the earlier one, in its place."""
        self._choices[choice.completion_id, choice.choice_index] = choice

    async def recorded(self) -> list[RecordedChoice]:
        """Keep what a lost worker did not live to keep. Return the replies that need not be generated again, whole or in part."""
        for completion_id, index in list(self._unkept):
            await self.keep(completion_id, index, self._choices[completion_id, index].tool_call_ids)
        return [choice for choice in self._choices.values() if choice.generation.output_ids]

    async def keep(self, completion_id: str, index: int, tool_call_ids: list[str]) -> None:
        """Keep a whole reply, with the ids of its tool calls. Returns when it is safe."""
        choice = replace(self._choices[completion_id, index], tool_call_ids=tool_call_ids)
        self.add(choice)
        if self.call_log is not None:
            await self.call_log.keep(choice)
        self._unkept.discard((completion_id, index))

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
