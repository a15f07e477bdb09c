"""Plain data as JSON: what may pass between a candidate and those who grade it. `plain_encoding` writes it and `plain_decoding` reads it.

Numbers, strings, bytes, dates, None, and lists, tuples, sets, dicts and the like of them. An object of any other class is not
data, so that no method of a candidate's ever runs where its result is graded: it passes as a reference, by number, or not at all.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentrl.sandboxes.inside.answer_bounds import Bounds

LARGEST_PLAIN_INT = 2**63
LARGEST_EXPONENT = 10_000
"""Of a Decimal. A larger one is a number that takes seconds to turn into another kind."""
CONSTANTS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}
SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
DICTS: dict[str, Any] = {"counter": Counter, "ordered": OrderedDict}
VIEWS: dict[type, Callable[[list[Any]], Any]] = {
    type({}.keys()): lambda items: dict.fromkeys(items).keys(),
    type({}.values()): lambda items: dict(enumerate(items)).values(),
    type({}.items()): lambda items: dict(items).items(),
}
"""Views of a dict, and how to make one of what is in it."""
BUILTIN_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(object, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, type),
        *(slice, type(None), deque, Counter),
    )
}
STANDARD = {
    **dict.fromkeys(("datetime", "date", "time", "timedelta"), "datetime"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "PurePath": "pathlib",
    "Path": "pathlib",
}
"""Classes of the standard library, and the modules that they are in: imported with the first value of theirs, and not before."""
PLAIN_BASES = (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, deque)
"""Classes whose subclasses have a plain value besides being objects."""
PLAIN_CLASSES = {*PLAIN_BASES, bool, Counter, OrderedDict, defaultdict}
MOST_ITEMS = 2 * Bounds().items
"""Of a value in which something is there more than once."""
LONGEST_OF_FRACTION = 20_000
"""Hexadecimal digits of its numerator and of its denominator, of which it takes the greatest common divisor in quadratic time."""
LONGEST_RANGE = 10_000_000
"""What looks through a longer one, such as `max`, takes too long."""


class NotPlainError(Exception):
    """A value that is not plain data, or JSON that stands for none. It is none of the errors that a test expects of a program."""


CHANGEABLE = (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
"""Plain classes whose objects a program may change. One that is in a value twice is there once, with two names."""
NESTED = {*CHANGEABLE, tuple}
Items = Mapping[int, list[tuple[int, int]]]
"""For containers that two sides have, by their ids: each number of a value that it is in, and its own number there."""
NO_ITEMS: Items = {}


def inside(value: Any) -> Iterable[Any]:
    """Return what is in a container that may itself be a container which a program may change."""
    kind = type(value)
    if kind in (list, tuple, deque):
        return value  # type: ignore[no-any-return]
    return value.values() if kind in (dict, OrderedDict, defaultdict, Counter) else ()


def is_changeable(value: Any) -> bool:
    """Return whether a program may change a value: a list, dict, set or the like, or a tuple with one in it."""
    kind = type(value)
    return kind in CHANGEABLE or (kind is tuple and any(type(item) in NESTED and is_changeable(item) for item in value))


class_name: Callable[[type], str] = type.__dict__["__name__"].__get__
class_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
"""What a class itself says, whatever its metaclass or whoever patches its module says."""


def imported(name: str) -> Any:
    """Return a class of STANDARD, or None as long as nobody has imported its module: then no value is of it."""
    return getattr(sys.modules.get(STANDARD[name]), name, None)


def standard(name: str) -> Any:
    """Return a class of STANDARD, whose module is imported where nobody has."""
    return getattr(importlib.import_module(STANDARD[name]), name)


def name_of_type(kind: type) -> str | None:
    """Return what a class that both sides have is called; None for any other."""
    name = class_name(kind)
    known = imported(name) if name in STANDARD else BUILTIN_TYPES.get(name)
    return name if kind is known else None


def type_called(name: str) -> Any:
    """Return the class that both sides have by a name."""
    return standard(name) if name in STANDARD else BUILTIN_TYPES[name]


def check_range(value: range) -> None:
    """Check that a range is not too long to look through.

    Raises:
        NotPlainError: It is too long to look through.
    """
    if value[:LONGEST_RANGE] != value:
        raise NotPlainError(f"a range of more than {LONGEST_RANGE} numbers is not plain data")


def checked_decimal(number: Any) -> Any:
    """Return a Decimal.

    Raises:
        NotPlainError: One that is slow or unsafe to compare.
    """
    if number.is_snan():
        raise NotPlainError("a Decimal that raises where it is compared")
    if number.is_finite() and abs(number.adjusted()) > LARGEST_EXPONENT:
        raise NotPlainError(f"a Decimal with an exponent beyond {LARGEST_EXPONENT}")
    return number


def checked_parts(parts: list[str]) -> list[str]:
    """Return numerator and denominator of a Fraction.

    Raises:
        NotPlainError: They are too long.
    """
    if any(len(part) > LONGEST_OF_FRACTION for part in parts):
        raise NotPlainError(f"a Fraction of more than {LONGEST_OF_FRACTION} hexadecimal digits")
    return parts
