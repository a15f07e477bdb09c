"""Write token records and generations into the store, and find what in it can be trained on.

A model call is one row of the table `calls`, written once: while its episode goes on it is the call log, and once the episode has
ended it is one of its turns. Numbers are columns: the first byte says of which type, the others are the array.

    calls       what the engine returned: output ids, logprobs, version spans;  ids and names of the call
    episodes    record      what the turns are to each other and to the workflow: parents, rewards, roles, as JSON
                prompt_ids  the ids between them, all in one column
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pydantic_core

from agentrl.engine.soundness import Expected, fault_of, fault_of_id
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn

_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
_INTEGERS = "Hiq"
"""Types of a column of integers, the smallest first: uint16, int32, int64."""
_FLOATS = "fd"
"""The same of floats. Engines compute in float32: 32 bits hold most logprobs exactly, and 64 the others."""
_AS_JSON = b"J"
"""What no array holds as it is, such as NaN, which equals nothing."""
_DEFAULTS = {"temperature": 1.0, "images": [], "reward": None, "role": "", "adapter": "", "role_reward": None}
_DEFAULTS |= {"trained": True, "truncated": False, "failed": False, "tools": False}
_DEFAULTS |= {"model": "", "root_kind": "main", "left_out": False}
_DEFAULTS |= {"alterations": {}}

CallContent = tuple[str, str, int, str, bytes, bytes, bytes, str, int, bytes | None]
"""(request, completion id, choice index, tool call ids, output ids, logprobs, versions, finish, cached tokens, top logprobs)"""


def to_column(values: Sequence[Any], types: str) -> bytes:
    """Write numbers, in the first of the array types that holds them exactly."""
    for code in types:
        try:
            packed = array(code, values)
        except (TypeError, OverflowError):
            continue
        if packed.tolist() == values:
            if sys.byteorder == "big":
                packed.byteswap()
            return code.encode() + packed.tobytes()
    return _AS_JSON + json.dumps(values).encode()


def from_column(column: bytes) -> list[Any]:
    """Read a column that `to_column` wrote. What that did not write raises an error of `_UNREADABLE`, or reads as something else."""
    code, content = column[:1], column[1:]
    if code == _AS_JSON:
        return list(json.loads(content))
    packed: array[Any] = array(code.decode())
    packed.frombytes(content)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def content_of_choice(choice: RecordedChoice) -> CallContent:
    """Return a recorded reply as a row of `calls` holds it."""
    said = choice.generation
    top = pydantic_core.to_json(said.top_logprobs, inf_nan_mode="constants") if said.top_logprobs else None
    return (
        choice.request,
        choice.completion_id,
        choice.choice_index,
        json.dumps(choice.tool_call_ids),
        to_column(said.output_ids, _INTEGERS),
        to_column(said.logprobs, _FLOATS),
        _versions(said.versions),
        said.finish,
        said.cached_tokens,
        top,
    )


def choice_of(content: Sequence[Any]) -> RecordedChoice | None:
    """Read a reply that `content_of_choice` wrote; None for one that cannot be read: it is then asked for again."""
    request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions, finish, cached, top = content
    try:
        generation = Generation(
            output_ids=from_column(output_ids),
            logprobs=from_column(logprobs),
            versions=_spans(versions),
            finish=finish,
            cached_tokens=cached,
            top_logprobs=[[(logprob, token) for logprob, token in at] for at in json.loads(top)] if top else [],
        )
        return RecordedChoice(request, completion_id, choice_index, list(json.loads(tool_call_ids)), generation)
    except _UNREADABLE:
        return None


def content_of_turn(turn: Turn) -> CallContent:
    """Return a turn as a row of `calls` holds it, when its episode has ended: nobody asks it again, and its top logprobs are gone."""
    return (
        turn.request,
        turn.completion_id,
        turn.choice_index,
        json.dumps(turn.tool_call_ids),
        to_column(turn.output_ids, _INTEGERS),
        to_column(turn.logprobs, _FLOATS),
        _versions(turn.versions),
        "length" if turn.truncated else "stop",
        0,
        None,
    )


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


def record_of(record: bytes, prompt_ids: bytes, calls: Sequence[Sequence[Any]]) -> TokenRecord:
    """Return the token record of an episode, from its own columns and the contents of its calls, in the order of its turns.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return TokenRecord(list(_turns(json.loads(record), from_column(prompt_ids), calls)))
    except _UNREADABLE as error:
        raise ValueError(f"its record cannot be read: {type(error).__name__}: {error}") from error


def _turns(columns: dict[str, list[Any]], prompt_ids: list[int], calls: Sequence[Sequence[Any]]) -> Iterator[Turn]:
    parents, lengths = columns.pop("parent"), columns.pop("prompt_length")
    turns: list[Turn] = []
    start = 0
    for index, (parent, length, call) in enumerate(zip(parents, lengths, calls, strict=True)):
        if not -1 <= parent < index:
            raise ValueError(f"turn {index} goes on from one that comes later")
        request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions, *_ = call
        own = {name: values[index] for name, values in columns.items()}
        own["images"] = [ImageSpan(**image) for image in own.get("images", [])]
        turn = Turn(
            completion_id=completion_id,
            parent=None if parent < 0 else turns[parent],
            prompt_ids=prompt_ids[start : start + length],
            output_ids=from_column(output_ids),
            logprobs=from_column(logprobs),
            versions=_spans(versions),
            request=request,
            choice_index=choice_index,
            tool_call_ids=list(json.loads(tool_call_ids)),
            **{"temperature": _DEFAULTS["temperature"], **own},
        )
        start += length
        turns.append(turn)
        yield turn
    if start != len(prompt_ids):
        raise ValueError(f"it has {len(prompt_ids)} prompt ids, its turns have {start}")


def _versions(spans: Sequence[VersionSpan]) -> bytes:
    return to_column([number for span in spans for number in (span.version, span.start, span.end)], _INTEGERS)


def _spans(column: bytes) -> list[VersionSpan]:
    numbers = iter(from_column(column))
    return [VersionSpan(version, start, end) for version, start, end in zip(numbers, numbers, numbers, strict=True)]


def record_fault(record: TokenRecord, reward: float, vocabulary: int | None) -> str | None:
    """Say why a stored episode cannot be trained on; None: it can."""
    faults = (_turn_fault(turn, vocabulary) for turn in record.turns)
    found = next((f"turn {index}: {fault}" for index, fault in enumerate(faults) if fault), None)
    return found or (None if math.isfinite(reward) else f"its reward is {reward}")


def _turn_fault(turn: Turn, vocabulary: int | None) -> str | None:
    for position, token in enumerate(turn.prompt_ids):
        if (fault := fault_of_id(token, vocabulary)) is not None:
            return f"token {position} of its prompt is {fault}"
    if not (math.isfinite(turn.temperature) and turn.temperature > 0):
        return f"its temperature is {turn.temperature}"
    for given in (turn.reward, turn.role_reward):
        if given is not None and not math.isfinite(given):
            return f"it was given the reward {given}"
    generation = Generation(output_ids=turn.output_ids, logprobs=turn.logprobs, versions=turn.versions, finish="abort")
    return fault_of(generation, Expected(vocabulary=vocabulary))
