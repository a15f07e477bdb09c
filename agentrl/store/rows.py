"""Replies and token records as rows of the store, and what of these can be trained on.

    engine ─► Generation ─► RecordedChoice ─► CallRow ─► table `calls`        once, before the reply is answered
                                 │ record          ▲ names
                                 ▼                 │
                            TokenRecord ─► PackedRecord ─► table `episodes`   when the episode has ended

A reply is a row of `calls`, encoded once: while its episode goes on it is the call log, and then one of its turns. A record only names
those. It comes from a worker process in this form, and the main process does not decode it. Numbers are columns: the first byte says of
which type, the others are the array.

    calls       what the engine returned: output ids, logprobs, version spans;  ids and names of the call
    episodes    record      what the turns are to each other and to the workflow: parents, rewards, roles, as JSON
                prompt_ids  the ids between them, all in one column
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from functools import cached_property
from typing import Any, NamedTuple

import pydantic_core

from agentrl.record.recorded_choice import Key, RecordedChoice, recorded_choices
from agentrl.record.soundness import Expected, fault_of, fault_of_tokens
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan
from agentrl.record.trajectory import RecordFigures, TokenRecord, Turn

_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
_INTEGERS = "Hiq"
"""Types of a column of integers, the smallest first: uint16, int32, int64."""
_FLOATS = "fd"
"""The same of floats. Engines compute in float32: 32 bits hold most logprobs exactly, and 64 the others."""
_AS_JSON = b"J"
"""What no array holds as it is, such as NaN, which equals nothing."""


class CallRow(NamedTuple):
    """A reply as a row of the table `calls` holds it. It is encoded once, on its way to the disk, and passed on as it is."""

    request: str
    completion_id: str
    choice_index: int
    tool_call_ids: str
    output_ids: bytes
    logprobs: bytes
    versions: bytes
    finish: str
    """"" in a reference."""
    cached_tokens: int
    top_logprobs: bytes | None

    @property
    def key(self) -> Key:
        """Return its name among the replies of its episode."""
        return self.completion_id, self.choice_index

    @property
    def is_reference(self) -> bool:
        """Return whether it only names a reply, to a reader who has it."""
        return not self.finish


_DEFAULTS = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(Turn)
    if field.init and field.name not in (*CallRow._fields, "parent", "prompt_ids")
}
"""The fields of a turn that a record holds as they are, each where a turn has another value than its default."""


def row_of(choice: RecordedChoice) -> CallRow:
    """Return a reply as a row holds it."""
    said = choice.generation
    top = pydantic_core.to_json(said.top_logprobs, inf_nan_mode="constants") if said.top_logprobs else None
    return CallRow(
        choice.request,
        choice.completion_id,
        choice.choice_index,
        json.dumps(choice.tool_call_ids),
        to_column(said.output_ids, _INTEGERS),
        to_column(said.logprobs, _FLOATS),
        to_column([number for span in said.versions for number in (span.version, span.start, span.end)], _INTEGERS),
        said.finish,
        said.cached_tokens,
        top,
    )


def reference_to(key: Key) -> CallRow:
    """Return a row that only names a reply."""
    return CallRow("", *key, "", b"", b"", b"", "", 0, None)


def choice_of(row: CallRow) -> RecordedChoice | None:
    """Return the reply of a row; None for one that cannot be read: it is then asked for again."""
    try:
        generation = Generation(
            output_ids=from_column(row.output_ids),
            logprobs=from_column(row.logprobs),
            versions=_spans(row.versions),
            finish="length" if row.finish == "length" else "stop",
            cached_tokens=row.cached_tokens,
            top_logprobs=[[(logprob, token) for logprob, token in at] for at in json.loads(row.top_logprobs or b"[]")],
        )
        ids = list(json.loads(row.tool_call_ids))
        return RecordedChoice(row.request, row.completion_id, row.choice_index, ids, generation)
    except _UNREADABLE:
        return None


class PackedRecord(TokenRecord):
    """A token record as the store holds it. `turns` are decoded at their first use.

    Args:
        columns: What the turns are to each other and to the workflow.
        prompt_ids: The ids between them.
        calls: What was sampled, by turn; a reply that the reader has is only named.
        figures: Those of the turns; None: they are computed of these.
    """

    def __init__(
        self, columns: bytes, prompt_ids: bytes, calls: Sequence[CallRow], figures: RecordFigures | None = None
    ) -> None:
        self.columns = columns
        self.prompt_ids = prompt_ids
        self.calls = calls
        self._figures = figures

    @cached_property
    def turns(self) -> list[Turn]:  # type: ignore[override]
        """The turns.

        Raises:
            ValueError: They cannot be read.
        """
        try:
            return list(_turns(json.loads(self.columns), from_column(self.prompt_ids), self.calls))
        except _UNREADABLE as error:
            raise ValueError(f"its record cannot be read: {type(error).__name__}: {error}") from error

    def fill(self, known: Mapping[Key, CallRow]) -> None:
        """Put the rows in place of references to them. Raises KeyError when one of them is not in `known`."""
        self.calls = [known[call.key] if call.is_reference else call for call in self.calls]

    def figures(self) -> RecordFigures:
        """Return what came with it."""
        return self._figures or super().figures()


def pack(record: TokenRecord, known: Container[Key] = ()) -> PackedRecord:
    """Return a record as the store holds it. Its replies that the reader has, `known`, are only named."""
    if isinstance(record, PackedRecord):
        return record
    choices = recorded_choices(record)
    calls = [reference_to(choice.key) if choice.key in known else row_of(choice) for choice in choices]
    return PackedRecord(*columns_of_record(record), calls, record.figures())


def to_column(values: Sequence[Any], types: str) -> bytes:
    """Write numbers, in the first of the array types that holds them exactly."""
    for code in types:
        try:
            packed = array(code, values)
        except (TypeError, OverflowError):
            continue
        if packed.tolist() == values:
            return array_column(code, packed.tobytes())
    return _AS_JSON + json.dumps(values).encode()


def array_column(code: str, content: bytes) -> bytes:
    """Return the column of an array of a type, whose numbers may be NaN too."""
    return code.encode() + content


def from_column(column: bytes) -> list[Any]:
    """Read a column that `to_column` wrote. What that did not write raises an error of `_UNREADABLE`, or reads as something else."""
    code, content = column[:1], column[1:]
    if code == _AS_JSON:
        return list(json.loads(content))
    packed: array[Any] = array(code.decode())
    packed.frombytes(content)
    return packed.tolist()


def columns_of_record(record: TokenRecord) -> tuple[bytes, bytes]:
    """Return (record, prompt_ids) of a row of `episodes`: all of a token record but what `calls` holds."""
    position = {id(turn): index for index, turn in enumerate(record.turns)}
    columns: dict[str, list[Any]] = {
        "parent": [-1 if turn.parent is None else position[id(turn.parent)] for turn in record.turns],
        "prompt_length": [len(turn.prompt_ids) for turn in record.turns],
    }
    for name, default in _DEFAULTS.items():
        values = [getattr(turn, name) for turn in record.turns]
        if any(value != default for value in values):
            columns[name] = [[asdict(image) for image in images] for images in values] if name == "images" else values
    prompt_ids = [token for turn in record.turns for token in turn.prompt_ids]
    return json.dumps(columns, separators=(",", ":")).encode(), to_column(prompt_ids, _INTEGERS)


def _turns(columns: dict[str, list[Any]], prompt_ids: list[int], calls: Sequence[CallRow]) -> Iterator[Turn]:
    parents, lengths = columns.pop("parent"), columns.pop("prompt_length")
    turns: list[Turn] = []
    start = 0
    for index, (parent, length, call) in enumerate(zip(parents, lengths, calls, strict=True)):
        if not -1 <= parent < index:
            raise ValueError(f"turn {index} extends one that comes later")
        own = {name: values[index] for name, values in columns.items()}
        own["images"] = [ImageSpan(**image) for image in own.get("images", [])]
        turn = Turn(
            completion_id=call.completion_id,
            parent=None if parent < 0 else turns[parent],
            prompt_ids=prompt_ids[start : start + length],
            output_ids=from_column(call.output_ids),
            logprobs=from_column(call.logprobs),
            versions=_spans(call.versions),
            request=call.request,
            choice_index=call.choice_index,
            tool_call_ids=list(json.loads(call.tool_call_ids)),
            **own,
        )
        start += length
        turns.append(turn)
        yield turn
    if start != len(prompt_ids):
        raise ValueError(f"it has {len(prompt_ids)} prompt ids, its turns have {start}")


def _spans(column: bytes) -> list[VersionSpan]:
    numbers = iter(from_column(column))
    return [VersionSpan(version, start, end) for version, start, end in zip(numbers, numbers, numbers, strict=True)]


def record_fault(record: TokenRecord, reward: float, vocabulary: int | None) -> str | None:
    """Say why a stored episode cannot be trained on; None: it can."""
    faults = (_turn_fault(turn, vocabulary) for turn in record.turns)
    found = next((f"turn {index}: {fault}" for index, fault in enumerate(faults) if fault), None)
    return found or (None if math.isfinite(reward) else f"its reward is {reward}")


def _turn_fault(turn: Turn, vocabulary: int | None) -> str | None:
    expected = Expected(vocabulary=vocabulary)
    if (fault := fault_of_tokens(turn.prompt_ids, [0.0] * len(turn.prompt_ids), expected)) is not None:
        return f"{fault}, in its prompt"
    if not (math.isfinite(turn.temperature) and turn.temperature > 0):
        return f"its temperature is {turn.temperature}"
    for given in (turn.reward, turn.role_reward):
        if given is not None and not math.isfinite(given):
            return f"it was given the reward {given}"
    generation = Generation(output_ids=turn.output_ids, logprobs=turn.logprobs, versions=turn.versions, finish="abort")
    return fault_of(generation, expected)
