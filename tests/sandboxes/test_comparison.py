"""When output counts as the expected one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import Exact, Floats, Tokens
from agentrl.sandboxes.comparison import same_value

words = st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1), max_size=6)
spaces = st.sampled_from([" ", "\n", "  \t", "\r\n"])


@given(words, st.data())
def test_tokens_are_the_same_whatever_the_space(content: list[str], data: st.DataObject) -> None:
    spaced = "".join(word + data.draw(spaces) for word in content)
    assert Tokens()(spaced, " ".join(content)) == ""


@given(words, words)
def test_tokens_differ_when_a_word_does(left: list[str], right: list[str]) -> None:
    agree = [w for word in left for w in word.split()] == [w for word in right for w in word.split()]
    assert (Tokens()(" ".join(left), " ".join(right)) == "") is agree


@given(st.floats(-1e12, 1e12), st.floats(-1e-5, 1e-5))
def test_floats_agree_within_the_tolerance(number: float, error: float) -> None:
    other = number + error
    close = abs(number - other) <= max(1e-6, 1e-6 * max(abs(number), abs(other)))
    assert (Floats()(repr(number), repr(other)) == "") is close


@pytest.mark.parametrize(
    ("output", "expected", "difference"),
    [
        ("nan", "nan", ""),
        ("nan", "1", "word 1 is 'nan', expected '1'"),
        ("inf", "inf", ""),
        ("inf", "1e308", "word 1 is 'inf', expected '1e308'"),
        ("1_0", "10", "word 1 is '1_0', expected '10'"),
        ("1" * 500, "1", "word 1 is '" + "1" * 60 + "…', expected '1'"),
        ("1 2", "1", "2 words, expected 1"),
        ("0x10", "16", "word 1 is '0x10', expected '16'"),
    ],
)
def test_words_that_pretend_to_be_numbers(output: str, expected: str, difference: str) -> None:
    assert Floats()(output, expected) == difference


def test_exact_minds_all_but_the_last_line_ends() -> None:
    assert Exact()("a\n b\n", "a\n b") == ""
    assert Exact()("a\n b", "a\n b\n\n") == ""
    assert Exact()("a \nb", "a\nb") == "line 1 is 'a ', expected 'a'"
    assert Exact()("a", "a\nb") == "1 lines, expected 2"


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "same"),
    [
        ((1, [2, (3,)]), [1, (2, [3])], None, True),
        ([1, 2], [1], None, False),
        ({"a": (1,)}, {"a": [1]}, None, True),
        ({"a": 1}, {"b": 1}, None, False),
        (0.1 + 0.2, 0.3, None, False),
        ([0.1 + 0.2], [0.3], 1e-9, True),
        (10**400, 1.0, 1e-9, False),
        (math.nan, math.nan, 1e-9, False),
        ("1", 1, 1e-9, False),
        (None, 0, 1e-9, False),
        ({1, 2}, {2, 1}, None, True),
        ("", [], None, False),
    ],
)
def test_values(got: object, expected: object, tolerance: float | None, same: bool) -> None:
    assert same_value(got, expected, tolerance) is same
