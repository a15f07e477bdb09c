"""What tests have borrowed of a candidate is told of when it changes, and given back when nobody holds it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.lent import (
    LARGEST_LOANS,
    Borrowed,
    BothChangedError,
    Lender,
    is_held_after_call,
    merge,
)
from agentrl.sandboxes.inside.plain_data import decode, encode


def test_what_nobody_holds_is_given_back() -> None:
    borrowed = Borrowed(encode)
    held = borrowed.note(1, [1])
    borrowed.note(2, [2])
    inner = borrowed.note(3, [[3]])[0]
    assert borrowed.changes() == {"contents": [], "released": [2]}
    held.append(4)
    inner.append(5)
    assert borrowed.changes() == {"contents": [[1, [1], [1, 4]], [3, [[3]], [[3, 5]]]], "released": []}
    assert borrowed.changes() == {}
    del held, inner
    assert borrowed.changes() == {"contents": [], "released": [1, 3]}


def test_what_a_test_gives_back_is_named_and_kept_until_it_has_arrived() -> None:
    borrowed = Borrowed(encode)
    borrowed.note(1, [1])
    value = borrowed.note(2, [2])
    assert borrowed.number([2]) is None
    assert borrowed.number(value) == 2
    del value
    assert borrowed.changes() == {"contents": [], "released": [1]}
    assert borrowed.changes() == {"contents": [], "released": [2]}


def test_what_the_candidate_has_told_is_not_told_to_it() -> None:
    borrowed = Borrowed(encode)
    value = borrowed.note(1, [1])
    value.append(2)
    borrowed.told(value)
    assert borrowed.changes() == {}


def test_no_more_is_borrowed_than_every_request_can_look_at() -> None:
    borrowed = Borrowed(encode)
    held = [borrowed.note(number, [number] * 1_000) for number in range(100)]
    borrowed.changes()
    assert 0 < len(str(held[-1])) < LARGEST_LOANS < sum(len(str(loan)) for loan in held)
    held[0].append(1)
    held[-1].append(1)
    assert [number for number, *_ in borrowed.changes()["contents"]] == [99]


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


def test_a_lender_forgets_what_is_given_back() -> None:
    lender = Lender()
    value = [1]
    assert lender.lend(value) == lender.lend(value) == {"lent": 1}
    lender.take_back({"contents": [[1, [1], [1, 2]]], "released": [1]}, decode)
    assert value == [1, 2]
    assert lender.lend(value) == {"lent": 2}
    assert lender.lend((1,)) == lender.lend([0] * 2_000) == {}


def test_what_the_candidate_has_given_never_changes_by_itself() -> None:
    """It could answer when it has seen what is expected."""
    borrowed = Borrowed(encode)
    given_by_candidate, made_by_test = borrowed.note(1, [1]), [1]
    borrowed.keep(2, made_by_test)
    borrowed.keep(1, given_by_candidate)
    borrowed.hear(1, [9])
    borrowed.hear(2, [9])
    borrowed.hear(3, [9])
    assert (given_by_candidate, made_by_test) == ([1], [9])
    made_by_test.append(8)
    borrowed.hear(2, [7])
    assert made_by_test == [9, 8]
    assert borrowed.changes()["contents"] == [[2, [9], [9, 8]]]


def test_an_argument_that_is_kept_is_told_of_once() -> None:
    lender, argument = Lender(), [1]
    assert lender.keep(argument, [1]) == 1
    assert lender.changes(encode) == []
    argument.append(2)
    assert (lender.changes(encode), lender.changes(encode)) == ([[1, [1, 2]]], [])
    lender.take_back({"contents": [[1, [1, 2], [1, 2, 3]]]}, decode)
    assert argument == [1, 2, 3]
    assert lender.changes(encode) == []
    lender.take_back({"released": [1]}, decode)
    argument.append(4)
    assert lender.changes(encode) == []
    assert lender.keep([0] * 2_000, None) is None


def test_an_argument_is_kept_if_somebody_holds_it_after_the_call() -> None:
    given: list[Any] = [[1], [2], 3]
    arguments = [*given]
    holder = arguments[1]
    assert [is_held_after_call(arguments, index) for index in range(3)] == [False, True, False]
    assert holder == [2]


def test_what_an_argument_has_become_that_is_no_data_is_told_to_nobody() -> None:
    lender, argument = Lender(), [1]
    lender.keep(argument, [1])
    argument.append(argument)
    assert lender.changes(encode) == []
    argument.pop()
    assert lender.changes(encode) == []
