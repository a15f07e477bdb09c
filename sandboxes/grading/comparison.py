"""When the output of a program, or the value of a call, counts as the expected one: compared on the host, as plain text and plain data.

Each comparison takes time linear in what it reads: a word is looked at as a number only up to MAX_NUMBER_CHARACTERS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import Checked, Tolerance

_WORD = re.compile(r"\S+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMERAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
"""A word that is a number: one with further zeros before it, as 0011, is text."""
MAX_NUMBER_CHARACTERS = 400
"""A longer word is compared as text."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Checked):
    """The same words in the same order, with any space and lines between them; of two numbers the value counts, not the text.

    `2.50` is 2.5, `1e3` is 1000, `-0` is 0, and `NaN` is nan; `0011` is text, and not 11. With a tolerance a number may differ from one that has a point or an exponent:
    |a − b| ≤ max(absolute, relative · max(|a|, |b|)). Two integers are equal or not, whatever the tolerance.
    """

    exact: bool = False
    """The same characters instead, but for line ends at the very end."""
    absolute: Tolerance = 0.0
    relative: Tolerance = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exact and (self.absolute or self.relative):
            raise ConfigError(
                "Comparison.exact = True compares characters, and has no tolerance; leave one of them out"
            )

    def __call__(self, output: str, expected: str) -> str:
        """Return the first difference; "" where there is none."""
        if self.exact:
            return self._first("line", *(text.rstrip("\r\n").split("\n") for text in (output, expected)))
        # One by one: a list of millions of words would take a hundred times the text.
        return self._first("word", *((word[0] for word in _WORD.finditer(text)) for text in (output, expected)))

    def _first(self, kind: str, output: Iterable[str], expected: Iterable[str]) -> str:
        for number, (got, wanted) in enumerate(zip_longest(output, expected), 1):
            if got is None:
                return f"{kind} {number} is missing, expected {_shown(wanted)}"
            if wanted is None:
                return f"{kind} {number} is {_shown(got)}, expected nothing more"
            if got != wanted and (self.exact or not self._same_number(got, wanted)):
                return f"{kind} {number} is {_shown(got)}, expected {_shown(wanted)}"
        return ""

    def _same_number(self, got: str, wanted: str) -> bool:
        a, b = _number(got), _number(wanted)
        if a is None or b is None:
            return False
        if a.is_nan() or b.is_nan():
            return a.is_nan() and b.is_nan()
        integers = _INTEGER.fullmatch(got) and _INTEGER.fullmatch(wanted)
        if a == b or integers or not (self.absolute or self.relative):
            return a == b
        x, y = float(a), float(b)
        return math.isfinite(x) and math.isfinite(y) and _close(x, y, self.absolute, self.relative)


def same_value(got: Any, expected: Any, tolerance: float | None = None, *, wrapped: bool = False) -> bool:
    """Return whether two values of plain data are equal, as `==` has it, but for these.

    A list equals a tuple of the same items, since test data written as JSON has no tuples; a float may differ by `tolerance`,
    absolute or relative, from a number; nan equals nan; and with `wrapped` an expected list of one item equals that
    item too, and {"1": 2}, as JSON has it, {1: 2} too.
    """
    if wrapped:
        one = expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
        texts = {str(key): got[key] for key in got} if isinstance(got, dict) else got
        return any(same_value(a, b, tolerance) for a in (got, texts) for b in (expected, one))
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            same_value(a, b, tolerance) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same_value(got[key], expected[key], tolerance) for key in got)
    if isinstance(got, float) and isinstance(expected, float) and math.isnan(got) and math.isnan(expected):
        return True
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    if tolerance is not None and numbers and (isinstance(got, float) or isinstance(expected, float)):
        try:
            return got == expected or _close(got, expected, tolerance, tolerance)
        except OverflowError:  # an integer beyond the floats
            return False
    return bool(got == expected)


def _close(a: float, b: float, absolute: float, relative: float) -> bool:
    return math.isclose(a, b, rel_tol=min(relative, 1.0), abs_tol=absolute)


def _number(word: str) -> Decimal | None:
    if len(word) > MAX_NUMBER_CHARACTERS or not _NUMERAL.fullmatch(word):
        return None
    try:
        return Decimal(word)
    except InvalidOperation:
        return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
