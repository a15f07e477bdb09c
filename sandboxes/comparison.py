"""When the output of a program counts as the expected one. All comparisons are of plain text and plain data, outside the sandbox."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


class Comparison(Protocol):
    """Decides whether what a program printed is what was expected."""

    def __call__(self, output: str, expected: str) -> str:
        """ "" when they agree, else the first difference in a few words."""
        ...


@dataclass(frozen=True)
class Exact:
    """The same characters, but for line ends at the very end."""

    def __call__(self, output: str, expected: str) -> str:
        """The first line that differs."""
        got, wanted = output.rstrip("\r\n"), expected.rstrip("\r\n")
        if got == wanted:
            return ""
        lines = zip(got.split("\n"), wanted.split("\n"), strict=False)
        for number, (line, wanted_line) in enumerate(lines, 1):
            if line != wanted_line:
                return f"line {number} is {_shown(line)}, expected {_shown(wanted_line)}"
        return f"{got.count(chr(10)) + 1} lines, expected {wanted.count(chr(10)) + 1}"


@dataclass(frozen=True)
class Tokens:
    """The same words in the same order, whatever the space between them."""

    def __call__(self, output: str, expected: str) -> str:
        """The first word that differs."""
        return _first_difference(output.split(), expected.split(), lambda got, wanted: got == wanted)


@dataclass(frozen=True)
class Floats:
    """Like Tokens, but numbers may differ: |a − b| ≤ max(absolute, relative · max(|a|, |b|))."""

    absolute: float = 1e-6
    relative: float = 1e-6

    def __call__(self, output: str, expected: str) -> str:
        """The first word that differs by more."""
        return _first_difference(output.split(), expected.split(), self._agree)

    def _agree(self, got: str, wanted: str) -> bool:
        if got == wanted:
            return True
        a, b = _number(got), _number(wanted)
        return a is not None and b is not None and math.isclose(a, b, rel_tol=self.relative, abs_tol=self.absolute)


def same_value(got: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Whether two values of plain data are equal, as `==` has it, but for two things: a list equals a tuple of the same items,
    since test data written as JSON has no tuples; and floats may differ by `tolerance`, absolute or relative."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            same_value(a, b, tolerance) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same_value(got[key], expected[key], tolerance) for key in got)
    if tolerance is not None and isinstance(got, int | float) and isinstance(expected, int | float):
        try:
            return got == expected or math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
        except OverflowError:  # an integer beyond the floats
            return False
    return bool(got == expected)


def _first_difference(got: list[str], wanted: list[str], agree: Any) -> str:
    for number, (word, wanted_word) in enumerate(zip(got, wanted, strict=False), 1):
        if not agree(word, wanted_word):
            return f"word {number} is {_shown(word)}, expected {_shown(wanted_word)}"
    return "" if len(got) == len(wanted) else f"{len(got)} words, expected {len(wanted)}"


def _number(word: str) -> float | None:
    if "_" in word or len(word) > 400:  # float() reads 1_000 as a thousand, and takes its time over a million digits
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
