"""The model calls of one attempt, so that it goes on in another worker when it loses its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agentrl.proxy import CallLog
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import beginning, join_generations


@dataclass(eq=False)
class EpisodeCalls:
    """The model calls of one attempt, in whichever workers it ran."""

    call_log: CallLog | None
    _choices: dict[tuple[str, int], RecordedChoice] = field(default_factory=dict)
    _unkept: set[tuple[str, int]] = field(default_factory=set)
    """Whole replies that a worker has asked to keep, and that are not safe yet."""

    def __post_init__(self) -> None:
        for choice in self.call_log.choices if self.call_log else ():
            self._add(choice)

    def _add(self, choice: RecordedChoice) -> None:
        """Note what a reply has; a later state replaces the earlier one, in its place."""
        self._choices[choice.completion_id, choice.choice_index] = choice

    async def recorded(self) -> list[RecordedChoice]:
        """Return the replies that need not be generated again, whole or in part, once those that a lost worker asked to keep are safe."""
        for key in list(self._unkept):
            await self.keep(self._choices[key])
        return list(self._choices.values())

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a whole reply. Returns when it is safe."""
        key = choice.completion_id, choice.choice_index
        self._add(choice)
        self._unkept.add(key)
        if self.call_log is not None:
            await self.call_log.keep(choice)
        self._unkept.discard(key)

    def grow(self, choice: RecordedChoice, kept: int) -> None:
        """Note what a reply has gained.

        Args:
            choice: The reply, with the tokens that are new.
            kept: How many of its tokens so far stay; the new ones follow.
        """
        known = self._choices.get((choice.completion_id, choice.choice_index))
        if known is not None and known.generation.finish != "abort":
            return  # it is whole
        if kept and (known is None or len(known.generation.output_ids) < kept):
            return  # of what it goes on from, nothing is known here
        if kept and known is not None:
            joined = join_generations(beginning(known.generation, kept, "abort"), choice.generation)
            choice = replace(choice, generation=joined)
        self._add(choice)
        if self.call_log is not None:
            self.call_log.note(choice)
