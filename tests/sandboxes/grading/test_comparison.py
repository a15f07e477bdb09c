"""When an output, or a value, counts as the expected one."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.sandboxes import Comparison
from agentrl.sandboxes.grading.comparison import same_value

words = st.lists(st.text(st.characters(categories=["L"]), min_size=1), max_size=6)
spaces = st.sampled_from([" ", "\n", "  \t", "\r\n", " \n\n"])


@given(words, words, st.data())
def test_words_are_compared_whatever_the_space(left: list[str], right: list[str], data: st.DataObject) -> None:
    spaced = "".join(word + data.draw(spaces) for word in left)
    agree = " ".join(left).split() == " ".join(right).split()
    assert (Comparison()(spaced, " ".join(right)) == "") is agree
    assert Comparison()(spaced, " ".join(left)) == ""


@pytest.mark.parametrize(
    ("output", "expected", "difference"),
    [
        ("2.50", "2.5", ""),
        ("1 2.0 \n\n3\n", "1 2\n3", ""),
        ("+7", "7", ""),
        ("0.50", ".5", ""),
        ("-0", "0", ""),
        ("-0.00", "0", ""),
        (".5", "5e-1", ""),
        ("1E3", "1000", ""),
        ("-INF", "-infinity", ""),
        ("nan", "nan", ""),
        ("11", "0011", "word 1 is '11', expected '0011'"),
        ("007", "7", "word 1 is '007', expected '7'"),
        ("00.5", "0.5", "word 1 is '00.5', expected '0.5'"),
        ("2.51", "2.5", "word 1 is '2.51', expected '2.5'"),
        ("NaN", "nan", ""),
        ("sNaN", "1", "word 1 is 'sNaN', expected '1'"),
        ("1e999999999999999999999", "1", "word 1 is '1e999999999999999999999', expected '1'"),
        ("1e999999999", "1", "word 1 is '1e999999999', expected '1'"),
        ("1e400", "1e500", "word 1 is '1e400', expected '1e500'"),
        ("1.0000000000000000000001", "1.0", "word 1 is '1.0000000000000000000001', expected '1.0'"),
        ("inf", "-inf", "word 1 is 'inf', expected '-inf'"),
        ("١٢", "12", "word 1 is '١٢', expected '12'"),
        ("1_0", "10", "word 1 is '1_0', expected '10'"),
        ("0x10", "16", "word 1 is '0x10', expected '16'"),
        ("1.0.0", "1.0", "word 1 is '1.0.0', expected '1.0'"),
        ("yes", "YES", "word 1 is 'yes', expected 'YES'"),
        ("1 2", "1", "word 2 is '2', expected nothing more"),
        ("1", "1 2", "word 2 is missing, expected '2'"),
    ],
)
def test_numbers_are_equal_by_value(output: str, expected: str, difference: str) -> None:
    assert Comparison()(output, expected) == difference


def test_a_number_of_a_million_digits_is_compared_as_text() -> None:
    long = "9" * 1_000_000
    assert Comparison()(long, long) == ""
    assert Comparison()(long, long + "1") == f"word 1 is '{'9' * 60}…', expected '{'9' * 60}…'"


def test_nan_is_right_where_nan_is_expected_however_it_is_written() -> None:
    compare = Comparison(absolute=1e-6)
    assert compare("NaN 1.0000001", "nan 1") == ""
    assert compare("nan", "1") == "word 1 is 'nan', expected '1'"
    assert compare("1", "nan") == "word 1 is '1', expected 'nan'"
    assert same_value([math.nan], [math.nan])
    assert not same_value([math.nan], [1.0], 1e-6)


@given(st.integers(-(10**30), 10**30), st.integers(-2, 2))
def test_integers_are_compared_exactly_whatever_the_tolerance(number: int, error: int) -> None:
    assert (Comparison(absolute=5, relative=1)(f"{number:+}", str(number + error)) == "") is (error == 0)
    assert same_value(number, number + error, 1.0) is (error == 0)


@given(
    st.decimals(-(10**12), 10**12, places=6),
    st.decimals(-(10**6), 10**6, places=6),
    st.sampled_from([Fraction(0), *(Fraction(1, 10**k) for k in range(7))]),
)
def test_numbers_with_a_point_are_compared_as_exact_arithmetic_has_it(
    a: Decimal, error: Decimal, tolerance: Fraction
) -> None:
    """But for differences that are within a billionth of the tolerance itself, where floats round."""
    b = a + error
    allowed = max(tolerance, tolerance * max(abs(Fraction(a)), abs(Fraction(b))))
    difference = abs(Fraction(a) - Fraction(b))
    assume(not tolerance or abs(difference - allowed) > max(allowed, abs(Fraction(a))) / 10**9)
    close = Comparison(absolute=float(tolerance), relative=float(tolerance))(f"{a:f}", f"{b:f}") == ""
    assert close is (difference <= allowed)


@given(st.text(st.sampled_from("ab\n\r "), max_size=30), st.text(st.sampled_from("ab\n\r "), max_size=30))
def test_exact_minds_all_but_the_last_line_ends(output: str, expected: str) -> None:
    said = Comparison(exact=True)(output, expected)
    assert (said == "") is (output.rstrip("\r\n") == expected.rstrip("\r\n"))


def test_exact_names_the_first_line_that_differs() -> None:
    exact = Comparison(exact=True)
    assert exact("a \nb", "a\nb") == "line 1 is 'a ', expected 'a'"
    assert exact("a\n2.0", "a\n2") == "line 2 is '2.0', expected '2'"
    assert exact("a", "a\nb") == "line 2 is missing, expected 'b'"
    with pytest.raises(ConfigError, match=r"Comparison.exact = True .* leave one of them out"):
        Comparison(exact=True, relative=1e-3)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_a_number(value: float) -> None:
    with pytest.raises(ConfigError, match=r"Comparison.relative = .* must be "):
        Comparison(relative=value)


@pytest.mark.soak
@pytest.mark.parametrize("compare", [Comparison(), Comparison(exact=True), Comparison(relative=0.1)])
@pytest.mark.parametrize("unit", ["0", "1 ", "\n", "1.", "-", "1e", "é ", "nan ", "0" * 399 + "x "])
def test_the_time_grows_with_the_output_and_no_faster(compare: Comparison, unit: str) -> None:
    def cpu_s(length: int) -> float:
        text = unit * (length // len(unit))
        started = time.thread_time()
        compare(text + "a", text + "b")
        compare(text, "1")
        return time.thread_time() - started

    assert cpu_s(1_000_000) < 15 * cpu_s(200_000) + 0.1


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
        ([7**1_000_000], [7**1_000_000], 1e-9, True),
        (math.nan, math.nan, 1e-9, True),
        ("1", 1, 1e-9, False),
        (None, 0, 1e-9, False),
        ({1, 2}, {2, 1}, None, True),
        ("", [], None, False),
    ],
)
def test_values(got: object, expected: object, tolerance: float | None, same: bool) -> None:
    assert same_value(got, expected, tolerance) is same


@pytest.mark.parametrize(
    ("got", "expected", "wrapped", "plain"),
    [(5, [5], True, False), ([5], [5], True, True), ([5], [[5]], True, False), (5, [5, 6], False, False), (5, 5, True, True),
     ({1: 2}, {"1": 2}, True, False), ({"1": 2}, [{"1": 2}], True, False), ({-1: [2]}, [{"-1": [2]}], True, False), ({1: 2}, {"1": 3}, False, False)],
)  # fmt: skip
def test_with_wrapped_a_list_of_one_item_stands_for_the_item_too_and_numbers_in_keys_for_themselves(
    got: object, expected: object, wrapped: bool, plain: bool
) -> None:
    assert (same_value(got, expected, wrapped=True), same_value(got, expected)) == (wrapped, plain)
