"""Replies and token records as the store holds them: bytes, which whoever only passes them on does not decode.

    worker: record ─► pack ─► PackedRecord ──frame──► main process ──► row of `episodes`, rows of `calls`
                                 │ its turns: replies that the main process has kept already are named, not sent again
                                 └ turns, decoded when somebody asks for them; figures, which come with it

In a run without workers the same is made in the thread that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from agentrl.record.record_figures import RecordFigures
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.rollout.stored_form import (
    CallContent,
    choice_of,
    columns_of_record,
    content_of_choice,
    content_of_turn,
    record_of,
)

Key = tuple[str, int]
"""(completion id, choice index), which tells the replies of an episode from each other."""
SAID = 8
"""So many of the first values of a row of `calls` are what was said: the others are of use until the episode ends."""


class StoredCall:
    """A reply as a row of the table `calls` holds it. It is encoded once, when its content is asked for."""

    __slots__ = ("_choice", "_content", "key")

    def __init__(self, key: Key, content: CallContent | None, choice: RecordedChoice | None = None) -> None:
        self.key = key
        self._content = content
        self._choice = choice

    @classmethod
    def of(cls, choice: RecordedChoice) -> StoredCall:
        """Return a reply's."""
        return cls((choice.completion_id, choice.choice_index), None, choice)

    @classmethod
    def of_content(cls, content: CallContent) -> StoredCall:
        """Return that of a row's values."""
        return cls((content[1], content[2]), content)

    @classmethod
    def named(cls, key: Key) -> StoredCall:
        """Return one that only says which it is, to who has it: it has no content."""
        return cls(key, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredCall) and (self.key, self.is_named or self.content) == (
            other.key,
            other.is_named or other.content,
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_named(self) -> bool:
        """Whether it only says which it is."""
        return self._content is None and self._choice is None

    @property
    def content(self) -> CallContent:
        """The row's values."""
        if self._content is None:
            assert self._choice is not None
            self._content, self._choice = content_of_choice(self._choice), None
        return self._content

    def choice(self) -> RecordedChoice | None:
        """Return the reply, decoded; None: it cannot be read."""
        return choice_of(self.content)


class PackedRecord(TokenRecord):
    """A token record as the store holds it. `turns` are decoded when somebody asks for them.

    Args:
        columns: What the turns are to each other and to the workflow.
        prompt_ids: The ids between them.
        calls: What was sampled, by turn.
        figures: Those of the turns.
    """

    def __init__(self, columns: bytes, prompt_ids: bytes, calls: Sequence[StoredCall], figures: RecordFigures) -> None:
        self.columns = columns
        self.prompt_ids = prompt_ids
        self.calls = calls
        self._figures = figures

    @cached_property
    def turns(self) -> list[Turn]:  # type: ignore[override]
        """The turns. Raises ValueError when they cannot be read."""
        return record_of(self.columns, self.prompt_ids, [call.content for call in self.calls]).turns

    def name(self, kept: Mapping[Key, StoredCall]) -> None:
        """Leave only the names of the calls that are in `kept`, for a reader who has them too."""
        self.calls = [StoredCall.named(call.key) if kept.get(call.key) is call else call for call in self.calls]

    def find(self, kept: Mapping[Key, StoredCall]) -> None:
        """Put in the calls that are only named. Raises KeyError when one of them is not in `kept`."""
        self.calls = [kept[call.key] if call.is_named else call for call in self.calls]

    def figures(self) -> RecordFigures:
        """Return what came with it."""
        return self._figures


def pack(record: TokenRecord, kept: Mapping[Key, StoredCall]) -> PackedRecord:
    """Return a record as the store holds it.

    Args:
        record: Any.
        kept: Replies of the episode that were kept as they happened: a turn that is one of them, to the last bit, is not encoded anew.
    """
    if isinstance(record, PackedRecord):
        return record
    calls = []
    for turn in record.turns:
        content = content_of_turn(turn)
        call = kept.get((turn.completion_id, turn.choice_index))
        known = call is not None and call.content[:SAID] == content[:SAID]
        calls.append(call if known and call is not None else StoredCall.of_content(content))
    return PackedRecord(*columns_of_record(record), calls, record.figures())
