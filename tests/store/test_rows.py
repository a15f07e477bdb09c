"""What is written into the store comes back as it was, in the smallest columns that hold it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.record.recorded_choice import recorded_choices
from agentrl.record.tokens import ImageSpan, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.store.changes import InsertCall, InsertEpisode, OpenGroup
from agentrl.store.rows import from_column, to_column
from agentrl.store.store import Store
from tests.store.test_store import outcome

IDS = st.lists(st.integers(0, 10) | st.integers(0, 2**17) | st.integers(0, 2**40), max_size=4)
LOGPROB = st.floats(-1000, 0, width=32) | st.floats(-1000, 0)
TURN = st.fixed_dictionaries(
    {"said": st.lists(st.tuples(IDS, LOGPROB), max_size=3), "new": IDS, "parent": st.integers(0, 100)},
    optional={
        "temperature": st.floats(0.1, 2),
        "reward": st.floats(-1, 1),
        "role": st.sampled_from(["", "critic"]),
        "trained": st.booleans(),
        "truncated": st.booleans(),
        "failed": st.booleans(),
        "tools": st.booleans(),
        "model": st.text(max_size=2),
        "adapter": st.sampled_from(["", "writer"]),
        "left_out": st.booleans(),
        "alterations": st.sampled_from([{}, {"top_k": 5}, {"min_p": 0.1, "logit_bias": [[3, -1.5], [7, 100.0]]}]),
        "request": st.text(max_size=2),
        "choice_index": st.integers(0, 2),
        "tool_call_ids": st.lists(st.text(max_size=2), max_size=2),
    },
)


@pytest.mark.slow
@given(st.lists(TURN, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_any_record_comes_back_as_it_went_in(turns: list[dict[str, Any]], log: list[bool]) -> None:
    """Of turns of which some were logged as they happened."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:
        store.begin_restart()
        store.write([OpenGroup(0, 0, 0)])
        record = TokenRecord()
        for number, values in enumerate(turns):
            said, new, pick = (values.pop(name) for name in ("said", "new", "parent"))
            parent = ([None, *record.turns])[pick % (len(record.turns) + 1)]
            ids = [token for some, _ in said for token in some]
            logprobs = [logprob for some, logprob in said for _ in some]
            spans = [VersionSpan(3, 0, len(ids))] if ids else []
            images = [ImageSpan("data:image/png;base64,AA", parent.length if parent else 0, 1)] if number == 3 else []
            turn = Turn(f"call-{number}", parent, new, ids, logprobs, spans, **{"temperature": 1.0, **values})
            turn.images = images
            record.turns.append(turn)
        record.reward_roles({"critic": 0.25})
        logged = [choice for choice, wanted in zip(recorded_choices(record), log, strict=False) if wanted]
        store.write([InsertCall(0, 0, choice) for choice in logged])
        ended = replace(outcome(1.0), record=record)
        store.write([InsertEpisode(0, 0, 0, ended, {choice.key for choice in logged})])
        (episode,) = store.episodes([0])
        assert episode.record.to_json() == record.to_json()
        assert store.logged_calls(0, 0) == []


@given(st.lists(st.integers() | st.floats() | st.none() | st.booleans() | st.text(max_size=2), max_size=4))
def test_any_values_come_back_from_a_column(values: list[Any]) -> None:
    for types in ("Hiq", "fd"):
        assert json.dumps(from_column(to_column(values, types))) == json.dumps(values) or (
            from_column(to_column(values, types)) == values
        )


@pytest.mark.parametrize(
    ("values", "types", "size"),
    [
        ([0, 65535], "Hiq", 2),
        ([0, 65536], "Hiq", 4),
        ([0, 2**31], "Hiq", 8),
        ([-0.5, -0.25], "fd", 4),
        ([-0.1, -0.25], "fd", 8),
    ],
)
def test_a_column_is_as_small_as_its_values_allow(values: list[Any], types: str, size: int) -> None:
    assert len(to_column(values, types)) == 1 + size * len(values)


@pytest.mark.parametrize("column", [b"", b"i", b"i\x00", b"x\x00", b"J", b"J{", b"J3"])
def test_what_is_no_column_is_refused(column: bytes) -> None:
    if column == b"i":
        assert from_column(column) == []
        return
    with pytest.raises((ValueError, TypeError)):
        from_column(column)
