"""A copy becomes as another copy has become."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.changes import BothChangedError, merge, set_content, snapshot
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode

VALUES: Any = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


LISTS = st.lists(VALUES, max_size=4)
DICTS = st.dictionaries(st.sampled_from("abcd"), VALUES)


@given(pair=st.tuples(LISTS, LISTS) | st.tuples(DICTS, DICTS))
def test_a_change_arrives_whole(pair: tuple[Any, Any]) -> None:
    before, after = pair
    container = decode(encode(before))
    merge(container, before, after)
    assert container == after


@pytest.mark.parametrize(
    ("own", "before", "after", "merged"),
    [
        ([1, 2], [1], [1, 3], [1, 2, 3]),
        (deque([1, 2]), deque([1]), deque([1, 3]), deque([1, 2, 3])),
        ({1, 2}, {1}, {3}, {2, 3}),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 5, "c": 3}, {"a": 5, "b": 2, "c": 3}),
        ([float("nan")], [float("nan")], [1], [1]),
        ({"a": 1}, {"a": 1}, {"a": True}, {"a": True}),
        ({1, 2}, {1, 2}, {True, 2}, {True, 2}),
    ],
)
def test_the_changes_of_both_are_kept(own: Any, before: Any, after: Any, merged: Any) -> None:
    merge(own, before, after)
    assert own == merged


def test_changes_that_do_not_go_together_are_told() -> None:
    with pytest.raises(BothChangedError):
        merge([1, 2], [1], [])


def test_nothing_becomes_another_kind() -> None:
    for container, content in (([1], {1}), ({"a": 1}, ["a"]), (deque([1]), [2]), (bytearray(b"a"), [1])):
        before = type(container)(container)
        set_content(container, content)
        assert container == before


def test_the_order_of_a_dict_is_its_content() -> None:
    own = {"a": 1, "b": 2}
    merge(own, {"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert [*own] == ["b", "a"]


def test_a_snapshot_has_nothing_of_the_test_s_in_it() -> None:
    held = [1]
    containers: list[Any] = [
        [held],
        (held,),
        {"a": held},
        deque([held], 3),
        defaultdict(list, a=held),
        OrderedDict(a=held),
        Counter({"a": held}),  # type: ignore[dict-item]
        [{"a": (held,)}],
    ]
    for container in containers:
        taken = snapshot(container)
        assert (taken, type(taken)) == (container, type(container))
        held.append(2)
        assert taken != container, container
        held.pop()
    assert snapshot(deque([1], 3)).maxlen == 3
    assert snapshot(defaultdict(list))["a"] == []


def test_there_is_no_snapshot_of_what_holds_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        snapshot(endless)
