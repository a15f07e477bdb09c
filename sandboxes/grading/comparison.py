"""When the output of a program counts as the expected one. All comparisons are of plain text and plain data, outside the sandbox."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.sandboxes.checked_fields import Tolerance, check_fields

_WORD = re.compile(r"\S+")
_INTEGER = re.compile(r"([+-]?)([0-9]+)")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE | re.ASCII
)
MAX_FLOAT_CHARACTERS = 400
"""A longer word is no floating-point number."""


class Comparison(Protocol):
    """Decides whether what a program printed is what was expected.

    One of your own is called in a process of its own, where it can be ended: define it at the top of a module.
    """

    def __call__(self, output: str, expected: str) -> str:
        """Return "" when they agree, else the first difference in a few words."""
        ...


@dataclass(frozen=True)
class Exact:
    """The same characters, but for line ends at the very end."""

    def __call__(self, output: str, expected: str) -> str:
        """Return the first line that differs."""
        got, wanted = output.rstrip("\r\n"), expected.rstrip("\r\n")
        if got == wanted:
            return ""
        position = _common_length(got, wanted)
        start = got.rfind("\n", 0, position) + 1
        line, wanted_line = _line(got, start), _line(wanted, start)
        if line != wanted_line:
            number = got.count("\n", 0, start) + 1
            return f"line {number} is {_shown(line)}, expected {_shown(wanted_line)}"
        return f"{got.count(chr(10)) + 1} lines, expected {wanted.count(chr(10)) + 1}"


@dataclass(frozen=True)
class Tokens:
    """The same words in the same order, whatever the space between them."""

    def __call__(self, output: str, expected: str) -> str:
        """Return the first word that differs."""
        return _first_difference(output, expected, lambda got, wanted: got == wanted)


@dataclass(frozen=True)
class Floats:
    """Like Tokens, but a number may differ from one with a point or an exponent: |a − b| ≤ max(absolute, relative · max(|a|, |b|)).

    Two integers are equal or not, whatever their length. Numbers are written in ASCII, as `-12`, `1.`, `.5`, `1e-3`, `inf`, `nan`.
    """

    absolute: Tolerance = 1e-6
    relative: Tolerance = 1e-6
    nan_equal: bool = False
    """Whether nan is right where nan is expected. By itself it equals nothing."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: str, expected: str) -> str:
        """Return the first word that differs by more."""
        return _first_difference(output, expected, self._agree)

    def _agree(self, got: str, wanted: str) -> bool:
        integers = _INTEGER.fullmatch(got), _INTEGER.fullmatch(wanted)
        if integers[0] and integers[1]:
            return _normal(integers[0]) == _normal(integers[1])
        a, b = _number(got), _number(wanted)
        if a is None or b is None:
            return got == wanted
        return _close(a, b, self.absolute, self.relative, nan_equal=self.nan_equal)


def _close(a: float, b: float, absolute: float, relative: float, *, nan_equal: bool) -> bool:
    if math.isnan(a) and math.isnan(b):
        return nan_equal
    return math.isclose(a, b, rel_tol=min(relative, 1.0), abs_tol=absolute)


def same_value(got: Any, expected: Any, tolerance: float | None = None, *, nan_equal: bool = False) -> bool:
    """Return whether two values of plain data are equal, as `==` has it, but for three things.

    A list equals a tuple of the same items, since test data written as JSON has no tuples; a float may differ by `tolerance`,
    absolute or relative, from a number; and nan equals nan where it is asked for.
    """
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            same_value(a, b, tolerance, nan_equal=nan_equal) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(
            same_value(got[key], expected[key], tolerance, nan_equal=nan_equal) for key in got
        )
    if isinstance(got, float) and isinstance(expected, float) and math.isnan(got) and math.isnan(expected):
        return nan_equal
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    if tolerance is not None and numbers and (isinstance(got, float) or isinstance(expected, float)):
        try:
            return got == expected or _close(got, expected, tolerance, tolerance, nan_equal=nan_equal)
        except OverflowError:  # an integer beyond the floats
            return False
    return bool(got == expected)


def _first_difference(output: str, expected: str, agree: Callable[[str, str], bool]) -> str:
    """Return the first word that differs. Words are looked at one by one: millions of them at once would take a hundred times the text."""
    got, wanted = _WORD.finditer(output), _WORD.finditer(expected)
    number = 0
    for wanted_word in wanted:
        word = next(got, None)
        if word is None:
            return f"{number} words, expected {number + 1 + sum(1 for _ in wanted)}"
        number += 1
        if not agree(word[0], wanted_word[0]):
            return f"word {number} is {_shown(word[0])}, expected {_shown(wanted_word[0])}"
    more = sum(1 for _ in got)
    return f"{number + more} words, expected {number}" if more else ""


def _common_length(a: str, b: str) -> int:
    """Return how many characters two texts begin with alike. Halves what is left, so that its copies are linear in all."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start : end if end >= 0 else len(text)]


def _normal(integer: re.Match[str]) -> str:
    """Return an integer without what does not change it: leading zeros, a plus, the sign of zero."""
    digits = integer[2].lstrip("0")
    return f"-{digits}" if integer[1] == "-" and digits else digits


def _number(word: str) -> float | None:
    # float() takes digits of every script, and underscores.
    return float(word) if len(word) <= MAX_FLOAT_CHARACTERS and _FLOAT.fullmatch(word) else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
