"""A request goes on from the recorded turn that it continues: by what its messages mean, or by the longest text or ids that it begins with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.proxy import ChatFormat, Session
from agentrl.proxy.prefixes import MessageNode
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn

TEXT = st.sampled_from(["", "a", "b"])
CALL = st.builds(
    lambda name, arguments: {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}},
    TEXT,
    st.sampled_from(["{}", "{ }", '{"x": 1}', '{"x":1}', "no JSON"]),
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}, optional={"name": TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none(), "tool_calls": st.lists(CALL)}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": TEXT}),
)


@given(st.lists(MESSAGE, max_size=4), st.lists(st.lists(MESSAGE, max_size=4), max_size=8))
def test_a_conversation_is_found_again_whatever_was_sent_meanwhile(asked: list[Any], others: list[list[Any]]) -> None:
    root = MessageNode()
    found = root.after(asked)
    for other in others:
        root.after(other)
    assert root.after(asked) is found


def called(arguments: str, **changed: Any) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **changed}


@pytest.mark.parametrize(
    ("said", "sent_back", "is_same"),
    [
        (called('{"x": 1, "y": 2}'), called('{"y":2,"x":1}', content="", refusal=None), True),
        (called('{"x": 1}'), called('{"x": 2}'), False),
        (called('{"x": 2.0, "y": 1e3}'), called('{"x": 2, "y": 1000}'), True),  # as JavaScript writes them
        (called('{"x": 1, "y": [2'), called('{"x": 1, "y": [2]}'), True),
        (called("[1]"), called('{"arguments": [1]}'), True),
        (called("{}", reasoning_content="I call it."), called("{}"), True),
    ],
)
def test_a_message_is_known_by_what_it_means_however_a_client_spells_it(
    said: dict[str, Any], sent_back: dict[str, Any], is_same: bool
) -> None:
    root = MessageNode()
    assert (root.after([said]) is root.after([sent_back])) is is_same


def reply(ids: list[int]) -> Generation:
    spans = [VersionSpan(0, 0, len(ids))] if ids else []
    return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")


def by_looking_at_all(record: TokenRecord, ids: list[int]) -> Turn | None:
    found = [turn for turn in reversed(record.turns) if turn.token_ids() == ids[: len(turn.token_ids())]]
    return max(found, key=lambda turn: len(turn.token_ids()), default=None)


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
        turn = session.record.add(f"call-{number}", prompt.parent, prompt.input_ids, reply(said), 1.0)
        turn.choice_index = choice
        session.remember(prompt, {"content": "x"}, turn)
    for turn in [*session.record.turns]:
        path = turn.token_ids() + last
        assert session.raw_prompt(nano_format, path).parent is by_looking_at_all(session.record, path)
