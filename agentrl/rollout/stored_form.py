"""How token records and generations are written into the store, and what in it can be trained on."""

from __future__ import annotations

import json
import math
import zlib

import pydantic_core

from agentrl.engine.soundness import Expected, fault_of, fault_of_id
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord, Turn

_UNREADABLE = (zlib.error, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)


def record_to_blob(record: TokenRecord) -> bytes:
    """A token record as a row of `episodes` holds it."""
    return zlib.compress(json.dumps(record.to_json()).encode(), 1)


def record_of(blob: bytes) -> TokenRecord:
    """The inverse of `record_to_blob`."""
    return TokenRecord.from_json(json.loads(zlib.decompress(blob)))


def choice_to_blob(choice: RecordedChoice) -> bytes:
    """A recorded reply as a row of `calls` holds it."""
    kept = {"tool_call_ids": choice.tool_call_ids, "generation": choice.generation}
    return zlib.compress(pydantic_core.to_json(kept, inf_nan_mode="constants"), 1)


def choice_of(request: str, completion_id: str, choice_index: int, blob: bytes) -> RecordedChoice | None:
    """The inverse of `choice_to_blob`; None for one that cannot be read: it is then asked for again."""
    try:
        kept = json.loads(zlib.decompress(blob))
        generation = Generation.from_json(kept["generation"])
        return RecordedChoice(request, completion_id, choice_index, list(kept["tool_call_ids"]), generation)
    except _UNREADABLE:
        return None


def episode_fault(blob: bytes, reward: float, vocabulary: int | None) -> str | None:
    """Say why a stored episode cannot be trained on; None: it can."""
    try:
        rows = json.loads(zlib.decompress(blob))
        record = TokenRecord.from_json(rows)
        if any(row["parent"] is not None and not 0 <= row["parent"] < index for index, row in enumerate(rows)):
            return "a turn goes on from one that comes later"
        faults = (_turn_fault(turn, vocabulary) for turn in record.turns)
        found = next((f"turn {index}: {fault}" for index, fault in enumerate(faults) if fault), None)
    except _UNREADABLE as error:
        return f"its record cannot be read: {type(error).__name__}: {error}"
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
