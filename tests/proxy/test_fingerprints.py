"""The fingerprint of a conversation is the same whatever its session has seen before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.proxy.fingerprints import Fingerprints

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
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(st.just({"type": "text", "text": "a"}))}),
)
CONVERSATION = st.tuples(st.lists(MESSAGE, max_size=4), st.sampled_from([None, [{"type": "function"}]]))


@given(st.lists(CONVERSATION, max_size=8))
def test_what_was_seen_before_changes_no_fingerprint(conversations: list[tuple[list[Any], Any]]) -> None:
    session = Fingerprints()
    for messages, tools in conversations:
        assert session.of(messages, tools) == Fingerprints().of(messages, tools)


def test_what_is_remembered_is_bounded() -> None:
    session = Fingerprints()
    for number in range(40):
        session.of([{"role": "user", "content": f"{number}" * 2**20}], None)
    assert session.remembered_characters <= 2**23
