"""What is too much is found in bytes, before they are read."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.answer_bounds import (
    MAX_COLLISIONS,
    MAX_DEPTH,
    Bounds,
    OutOfBoundsError,
    check_bounds,
    check_hashes,
)
from agentrl.sandboxes.inside.plain_data import LONGEST_RANGE, NotPlainError
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(st.sampled_from('"\\[]{},:0a\ud800')),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(st.sampled_from('"\\[{,')), inner, max_size=6),
    max_leaves=40,
)


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def count(value: Any) -> int:
    """Commas and opening brackets, as one would count them in what JSON writes."""
    if isinstance(value, dict | list):
        inner = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(0, len(inner) - 1) + sum(map(count, inner))
    return 0


@given(values)
def test_what_is_in_strings_counts_for_nothing(value: Any) -> None:
    answer = json.dumps(value).encode()
    check_bounds(answer, Bounds(len(answer), 1000))
    if (items := count(value)) > 0:
        with pytest.raises(OutOfBoundsError):
            check_bounds(answer, Bounds(len(answer), items - 1))
    with pytest.raises(OutOfBoundsError, match="bytes"):
        check_bounds(answer, Bounds(len(answer) - 1, 1000))


@given(st.integers(1, 2 * MAX_DEPTH), st.sampled_from(['"["', "[]", '{"[": {}}', "1"]))
def test_depth_is_that_of_the_brackets(levels: int, inner: str) -> None:
    answer = ("[" * levels + inner + "]" * levels).encode()
    if levels + inner.replace('"["', "").count("[") + inner.count("{") > MAX_DEPTH:
        with pytest.raises(OutOfBoundsError, match="nested"):
            check_bounds(answer)
    else:
        check_bounds(answer)


@pytest.mark.parametrize(
    "answer",
    [b"1" * 101, b"0." + b"1" * 100, b"[" + b"-" * 101 + b"]", b'{"int": "0x' + b"f" * 1_000_100 + b'"}', b"x" * 101],
)
def test_long_numbers_are_out_of_bounds(answer: bytes) -> None:
    with pytest.raises(OutOfBoundsError, match=r"number|integer"):
        check_bounds(answer)


@pytest.mark.parametrize(
    "answer", [b'"' + b"1" * 1_000_000 + b'"', b"1" * 100, b'{"int": "0x' + b"f" * 1_000_000 + b'"}']
)
def test_long_strings_and_integers_that_are_long_enough_are_not(answer: bytes) -> None:
    check_bounds(answer)


@pytest.mark.soak
@pytest.mark.parametrize(
    "unit", [b"[]", b"[],", b"1,", b'"",', b'\\"', b'"\\\\', b"[", b"{", b'"', b" ", b"1", b"\0", b"\xff"]
)
def test_the_time_grows_with_the_answer_and_no_faster(unit: bytes) -> None:
    def cpu_s(length: int) -> float:
        answer = unit * (length // len(unit))
        started = time.thread_time()
        with contextlib.suppress(OutOfBoundsError):
            check_bounds(answer)
        return time.thread_time() - started

    assert cpu_s(5_000_000) < 12 * cpu_s(1_000_000) + 0.1


def colliding_data() -> tuple[list[int], list[Any]]:
    """Keys of one hash, and what holds them all."""
    colliding = [k * (2**61 - 1) for k in range(1, 20_000)]
    encoded = [encode(key) for key in colliding]
    return colliding, [{"set": encoded}, {"frozenset": encoded}, {"dict": [[key, 1] for key in encoded]}]


def test_keys_of_one_hash_are_refused() -> None:
    colliding, held = colliding_data()
    for data in held:
        with pytest.raises(NotPlainError, match="the same hash"):
            decode(data)
    check_hashes(colliding[:MAX_COLLISIONS])
    check_hashes([1] * 20 + list(range(100_000)))
    with pytest.raises(NotPlainError):
        decode({"set": [[1]]})


@pytest.mark.soak
def test_keys_of_one_hash_are_refused_before_they_are_put_anywhere() -> None:
    for data in colliding_data()[1]:
        started = time.thread_time()
        with pytest.raises(NotPlainError, match="the same hash"):
            decode(data)
        assert time.thread_time() - started < 1  # 5 to 17 s in a set


def test_a_long_range_is_no_data() -> None:
    assert decode(encode(range(0, 3 * LONGEST_RANGE, 3))) == range(0, 3 * LONGEST_RANGE, 3)
    for value in (range(LONGEST_RANGE + 1), range(10**18), range(0, -(10**30), -1)):
        with pytest.raises(NotPlainError, match="a range of more"):
            encode(value)
        with pytest.raises(NotPlainError, match="a range of more"):
            decode({"range": [value.start, value.stop, value.step]})
