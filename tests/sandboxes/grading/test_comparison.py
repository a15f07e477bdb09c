"""When output counts as the expected one."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.sandboxes import Exact, Floats, Tokens
from agentrl.sandboxes.grading.comparison import Comparison, same_value

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
        ("nan", "nan", "word 1 is 'nan', expected 'nan'"),
        ("١٢", "12", "word 1 is '١٢', expected '12'"),
        ("٠.٥", "0.5", "word 1 is '٠.٥', expected '0.5'"),
        ("1_0.0", "10.0", "word 1 is '1_0.0', expected '10.0'"),
        ("-0", "0", ""),
        ("+007", "7", ""),
        ("-00", "+0", ""),
        ("1000001", "1000000", "word 1 is '1000001', expected '1000000'"),
        ("1000001.0", "1000000", ""),
        ("9" * 100, "9" * 99 + "8", "word 1 is '" + "9" * 60 + "…', expected '" + "9" * 60 + "…'"),
        ("-INF", "-infinity", ""),
        ("inf", "-inf", "word 1 is 'inf', expected '-inf'"),
        (".5", "5e-1", ""),
        ("1e400", "inf", ""),
        ("1.0.0", "1.0", "word 1 is '1.0.0', expected '1.0'"),
        ("abc", "abc", ""),
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


def test_nan_is_right_where_it_is_expected_and_asked_for() -> None:
    floats = Floats(nan_equal=True)
    assert floats("nan 1.0", "NaN 1") == ""
    assert floats("nan", "1") == "word 1 is 'nan', expected '1'"
    assert floats("1", "nan") == "word 1 is '1', expected 'nan'"
    assert same_value([math.nan], [math.nan], nan_equal=True)
    assert not same_value([math.nan], [1.0], 1e-6, nan_equal=True)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_a_number(value: float) -> None:
    with pytest.raises(ConfigError, match=r"Floats.relative = .* must be a number of at least 0"):
        Floats(relative=value)


@given(st.integers(-(10**30), 10**30), st.integers(-2, 2), st.sampled_from(["", "0", "000"]))
def test_integers_are_compared_exactly(number: int, error: int, zeros: str) -> None:
    sign, digits = ("-" if number < 0 else ""), str(abs(number))
    assert (Floats(absolute=5, relative=1)(f"{sign}{zeros}{digits}", str(number + error)) == "") is (error == 0)
    assert same_value(number, number + error, 1.0) is (error == 0)


@given(
    st.decimals(-(10**12), 10**12, places=6),
    st.decimals(-(10**6), 10**6, places=6),
    st.sampled_from([Fraction(1, 10**k) for k in range(7)]),
)
def test_numbers_with_a_point_are_compared_as_exact_arithmetic_has_it(
    a: Decimal, error: Decimal, tolerance: Fraction
) -> None:
    """But for differences that are within a billionth of the tolerance itself, where floats round."""
    b = a + error
    allowed = max(tolerance, tolerance * max(abs(Fraction(a)), abs(Fraction(b))))
    difference = abs(Fraction(a) - Fraction(b))
    assume(abs(difference - allowed) > max(allowed, abs(Fraction(a))) / 10**9)
    close = Floats(absolute=float(tolerance), relative=float(tolerance))(f"{a:f}", f"{b:f}") == ""
    assert close is (difference <= allowed)


@given(st.text(st.sampled_from("ab\n\r "), max_size=30), st.text(st.sampled_from("ab\n\r "), max_size=30))
def test_the_first_line_that_differs_is_named(output: str, expected: str) -> None:
    got, wanted = output.rstrip("\r\n").split("\n"), expected.rstrip("\r\n").split("\n")
    said = Exact()(output, expected)
    pairs = enumerate(zip(got, wanted, strict=False), 1)
    first = next((f"line {n} is {a!r}, expected {b!r}" for n, (a, b) in pairs if a != b), None)
    assert said == ("" if got == wanted else first or f"{len(got)} lines, expected {len(wanted)}")


@pytest.mark.soak
@pytest.mark.parametrize("compare", [Exact(), Tokens(), Floats()], ids=lambda compare: type(compare).__name__)
@pytest.mark.parametrize("unit", ["0", "1 ", "\n", "1.", "-", "1e", "é ", "nan ", "0" * 399 + "x "])
def test_the_time_grows_with_the_output_and_no_faster(compare: Comparison, unit: str) -> None:
    def cpu_s(length: int) -> float:
        text = unit * (length // len(unit))
        started = time.thread_time()
        compare(text + "a", text + "b")
        compare(text, "1")
        return time.thread_time() - started

    assert cpu_s(1_000_000) < 15 * cpu_s(200_000) + 0.1


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
