"""A copy becomes as another copy has become, and what is in it stays the same objects."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.changes import BothChangedError, merge, replace_content
from agentrl.sandboxes.inside.plain_data import decode, encode

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
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, 3]}, {"a": [1, 2, 3]}),
    ],
)
def test_the_changes_of_both_are_kept(own: Any, before: Any, after: Any, merged: Any) -> None:
    merge(own, before, after)
    assert own == merged


def test_changes_that_do_not_go_together_are_told() -> None:
    with pytest.raises(BothChangedError):
        merge([1, 2], [1], [])


@given(rows=st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=5), order=st.randoms(use_true_random=False))
def test_what_is_moved_is_the_same_object_still(rows: list[list[int]], order: Any) -> None:
    """Where its content is nobody else's: which of two alike was moved where cannot be seen."""
    own = copy.deepcopy(rows)
    by_id = {id(row): list(row) for row in own}
    moved = copy.deepcopy(rows)
    order.shuffle(moved)
    replace_content(own, moved)
    assert own == moved
    assert {id(row): row for row in own} == by_id


def test_what_is_there_twice_after_a_change_is_one_object() -> None:
    first = [1]
    rows, row = [first, [2]], [3]
    replace_content(rows, [row, row])
    assert rows == [[3], [3]]
    assert rows[0] is rows[1] is first


def test_lists_in_a_tuple_change() -> None:
    pair = ([1], 2)
    replace_content(pair, ([3], 2))
    assert pair == ([3], 2)
    merge(pair, ([3], 2), ([3, 4], 2))
    assert pair == ([3, 4], 2)
