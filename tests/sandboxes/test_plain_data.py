"""What may pass between a candidate and its judge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.plain_data import NotPlainError, decode, encode

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
    encode(value)  # nothing but plain data has come of it


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
