"""What may pass between a candidate and its grader."""

from __future__ import annotations

import datetime
import json
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.plain_data import LARGEST_EXPONENT, LONGEST_OF_FRACTION, NotPlainError, inside
from agentrl.sandboxes.inside.plain_decoding import decode, decode_and_count
from agentrl.sandboxes.inside.plain_encoding import encode

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.binary().map(bytearray),
    lambda inner: st.lists(inner) | st.dictionaries(hashable, inner) | st.sets(hashable),
    max_leaves=10,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["set", "tuple", "ref", "int"]), inner),
)


@given(plain)
def test_plain_data_comes_back_as_it_went(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) or isinstance(value, set | frozenset | dict | tuple | list)


@given(json_values)
def test_whatever_a_candidate_sends_is_data_or_refused(content: Any) -> None:
    try:
        value = decode(content)
    except NotPlainError:
        return
    try:
        encode(value)
    except NotPlainError as error:
        raise AssertionError(f"{content!r} has become what is no plain data") from error


def test_an_object_is_no_data() -> None:
    with pytest.raises(NotPlainError, match="an object of class object"):
        encode([object()])
    assert encode([object()], lambda _: {"ref": 1}) == [{"ref": 1}]
    with pytest.raises(NotPlainError, match="a reference where only plain data may be"):
        decode([{"ref": 1}])


def test_numpy_s_values_are_data() -> None:
    import numpy as np

    assert encode([np.float64(1.5), np.int64(2), np.array([[1, 2]])]) == [1.5, 2, [[1, 2]]]


def test_nesting_without_end_is_refused() -> None:
    content: Any = 1
    for _ in range(100_000):
        content = [content]
    with pytest.raises(NotPlainError):
        decode(content)


CONTAINERS: Any = st.recursive(
    st.integers(0, 3), lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=12
)


@given(value=CONTAINERS, names=st.lists(st.integers(0, 20), max_size=4))
def test_what_is_there_twice_is_one_object_on_the_other_side(value: Any, names: list[int]) -> None:
    found: list[list[Any]] = []

    def look(one: Any) -> None:
        if isinstance(one, list | tuple):
            if isinstance(one, list):
                found.append(one)
            for inner in one:
                look(inner)

    look(value)
    parts = [found[name % len(found)] for name in names] if found else []
    back = decode(json.loads(json.dumps(encode([value, parts]))))
    assert back == [value, parts]
    assert _shape([value, parts], {}) == _shape(back, {})


def _shape(value: Any, met: dict[int, int]) -> Any:
    """Which lists are which."""
    if isinstance(value, list):
        if id(value) in met:
            return met[id(value)]
        met[id(value)] = len(met)
    return (
        [type(value).__name__, *(_shape(inner, met) for inner in value)] if isinstance(value, list | tuple) else value
    )


def test_what_holds_itself_is_no_data() -> None:
    value: list[Any] = []
    value.append([value])
    with pytest.raises(NotPlainError, match="a list that holds itself"):
        encode(value)


def test_names_cannot_make_a_small_answer_large() -> None:
    content: Any = {"shared": [0, [0] * 100]}
    for number in range(1, 40):
        content = {"shared": [number, [content, *[{"again": number - 1}] * 9]]}
    with pytest.raises(NotPlainError, match="too large"):
        decode(content)
    inner: Any = 0
    siblings: list[Any] = []
    for number in range(100):
        siblings.append({"shared": [number, [[[[[inner]]]]]]})
        inner = {"again": number}
    with pytest.raises(NotPlainError, match="too large"):
        decode(siblings)


def test_only_what_a_program_may_change_has_two_names() -> None:
    for content in ({"shared": [1, 5]}, {"again": 1}, {"shared": [1, [{"again": 1}]]}):
        with pytest.raises(NotPlainError):
            decode(content)


def test_what_the_reader_has_is_named() -> None:
    inner = [1]
    assert encode([inner, 2], items={id(inner): [(7, 1), (-1, 0)]}) == [{"item": [7, 1, {"item": [-1, 0, [1]]}]}, 2]


def in_each_other(levels: int) -> tuple[Any, list[Any]]:
    """A value of 2^levels items, and the lists in it."""
    lists: list[Any] = [[1]]
    for _ in range(levels):
        lists.append([lists[-1], lists[-1]])
    return lists[-1], lists


def content_of(reference: Any) -> Any:
    return reference["item"][2]


def test_what_is_in_a_value_twice_is_written_once_and_read_as_one() -> None:
    value, lists = in_each_other(40)
    items = {id(one): [(7, index), (8, index)] for index, one in enumerate(lists)}
    data = encode(value, items=items)
    assert len(json.dumps(data)) < 10_000
    small = json.loads(json.dumps(encode(in_each_other(10)[0])))
    assert decode_and_count(small)[1] == sum(2**n for n in range(1, 11)) + 2**10


@pytest.mark.parametrize("kind", ["item", "shared"])
def test_a_short_answer_that_stands_for_a_large_value_is_refused_before_it_is_made(kind: str) -> None:
    first = {"item": [1, 0, [0, 0]], "shared": [0, [0, 0]]}[kind]
    data = [{kind: first}]
    for level in range(1, 40):
        again = {"item": [1, level - 1, None]} if kind == "item" else {"again": level - 1}
        content = [again, again]
        data.append({kind: [1, level, content] if kind == "item" else [level, content]})
    with pytest.raises(NotPlainError, match="more than once"):
        decode(data, content_of)
    with pytest.raises(NotPlainError, match="more than once"):
        decode(data[:12], content_of, most_items=1000)
    assert len(decode(data[:5], content_of, most_items=1000)) == 5


@given(st.datetimes(timezones=st.none()), st.integers(0, 1))
def test_a_time_keeps_which_of_two_hours_it_is(moment: datetime.datetime, fold: int) -> None:
    for value in (moment.replace(fold=fold), moment.replace(fold=fold).time()):
        back = decode(json.loads(json.dumps(encode(value))))
        assert (back, back.fold) == (value, fold)


@pytest.mark.parametrize(
    "value",
    [
        Decimal(f"1e{LARGEST_EXPONENT + 1}"),
        Decimal("sNaN"),
        Fraction(1, 16**LONGEST_OF_FRACTION),
        range(10**18),
    ],
)
def test_what_would_not_be_read_is_not_written(value: Any) -> None:
    """The side that gives it is told, and not the one that gets it; and as no error that a test may expect."""
    with pytest.raises(NotPlainError) as refused:
        encode([value])
    assert not isinstance(refused.value, TypeError | ValueError)


def test_whatever_holds_lists_shows_them() -> None:
    held = [1]
    for container in ([held], (held,), {"a": held}, deque([held]), Counter({"a": held})):  # type: ignore[dict-item]
        assert [*inside(container)] == [held]
