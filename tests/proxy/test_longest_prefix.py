"""A raw prompt goes on from the longest recorded reply that it begins with, and finding it costs one pass over the prompt."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.proxy import ChatFormat, Session
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn

TURNS = 500


def reply(ids: list[int]) -> Generation:
    spans = [VersionSpan(0, 0, len(ids))] if ids else []
    return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")


def by_looking_at_all(record: TokenRecord, ids: list[int]) -> Turn | None:
    found = [turn for turn in record.turns if turn.token_ids() == ids[: len(turn.token_ids())]]
    return max(found, key=lambda turn: (len(turn.token_ids()), -turn.choice_index), default=None)


ids = st.lists(st.integers(30, 32), min_size=1, max_size=4)


@given(st.lists(st.tuples(ids, ids, st.integers(0, 2), st.integers(0, 30)), max_size=15), ids)
def test_of_all_recorded_replies_the_longest_that_it_begins_with_is_continued(
    nano_format: ChatFormat, calls: list[tuple[list[int], list[int], int, int]], last: list[int]
) -> None:
    session = Session()
    for number, (asked, said, choice, after) in enumerate(calls):
        turns = session.record.turns
        before = turns[after % len(turns)].token_ids() if turns and after % 3 else []
        prompt = session.raw_prompt(nano_format, before + asked)
        assert prompt.parent is by_looking_at_all(session.record, before + asked)
        session.add(f"call-{number}", prompt, reply(said), 1.0, {"role": "assistant", "content": "x"}, choice)
    for turn in [*session.record.turns]:
        path = turn.token_ids() + last
        assert session.raw_prompt(nano_format, path).parent is by_looking_at_all(session.record, path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ids", "text"])
def test_a_long_episode_of_raw_prompts_costs_one_pass_a_request(nano_format: ChatFormat, kind: str) -> None:
    session = Session()
    raw: list[int] | str = [30] if kind == "ids" else "1"
    for number in range(TURNS):
        prompt = session.raw_prompt(nano_format, raw)
        assert prompt.parent is (session.record.turns[-1] if number else None)
        generation = reply([31])
        session.add(f"call-{number}", prompt, generation, 1.0, {"role": "assistant", "content": "2"}, 0)
        raw = [*raw, 31, 32] if isinstance(raw, list) else f"{raw}2é"
    used = []
    for _ in range(5):
        started = time.thread_time()
        session.raw_prompt(nano_format, raw)
        used.append(time.thread_time() - started)
    assert min(used) < 0.02, "at most some ten microseconds a turn"
