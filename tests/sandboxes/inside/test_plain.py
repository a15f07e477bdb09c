"""What passes between a program and its tests is plain data, by exact type and within bounds."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from agentrl.sandboxes.inside.plain import NotPlainError, decode, encode, read_line, write_line

Point = namedtuple("Point", "x y")


class AlwaysEqual(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def passed(value: Any) -> Any:
    """What arrives on the other side."""
    return decode(read_line(write_line(encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1.5, -0.0, math.inf, 2**40_000, 1 + 2j, "é\ud800\0", b"\0\xff", bytearray(b"a")),
        *([1, [2]], (1, (2,)), {1, 2}, frozenset("ab"), {"a": [1], (2,): None}, deque([1])),
        *(Counter("aab"), OrderedDict(a=1, b=2), Decimal("1.50"), Fraction(1, 3)),
        *(date(2024, 2, 29), time(1, 2), datetime(2024, 1, 1, tzinfo=UTC), timedelta(days=1, microseconds=5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    assert passed(value) == value
    assert type(passed(value)) is type(value)


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Point(1, 2), (1, 2)),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (range(3), [0, 1, 2]),
        (map(str, [1, 2]), ["1", "2"]),
        ((n for n in (1, 2)), [1, 2]),
        ({1: 2}.items(), [(1, 2)]),
    ],
)
def test_what_functions_give_instead_of_lists_arrives_as_plain_data(value: Any, arrives: Any) -> None:
    assert passed(value) == arrives


def test_nan_and_numpy_arrive() -> None:
    np = pytest.importorskip("numpy")
    assert math.isnan(passed(math.nan))
    assert passed([np.float64(1.5), np.arange(3)]) == [1.5, [0, 1, 2]]


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "make",
    [
        object,
        lambda: AlwaysEqual(1),
        lambda: int,
        lambda: print,
        lambda: ValueError(1),
        endless,
        lambda: [[0] * 1000] * 1001,
    ],
    ids=["an object", "a subclass", "a class", "a function", "an exception", "a list in itself", "too many items"],
)
def test_anything_else_does_not_pass(make: Callable[[], Any]) -> None:
    with pytest.raises(NotPlainError):
        encode(make())


def test_a_line_has_a_bound() -> None:
    with pytest.raises(NotPlainError, match="more than 8 MB"):
        write_line("a" * (8 << 20))
    with pytest.raises(ValueError, match="too long"):
        read_line(b'"' + b"a" * (8 << 20) + b'"\n')


def nested(depth: int) -> Any:
    part: Any = 1
    for _ in range(depth):
        part = [part]
    return part


@pytest.mark.parametrize(
    "part",
    [
        *(
            {},
            {"a": 1, "b": 2},
            {"object": []},
            {"dict": [[1]]},
            {"dict": [[[], 1]]},
            {"set": [[]]},
            {"bytes": "zz"},
            {"int": "q"},
        ),
        *(
            {"tuple": 1},
            {"complex": ["a"]},
            {"decimal.Decimal": ["x"]},
            {"fractions.Fraction": [1, 0]},
            {"datetime.date": ["x"]},
        ),
        *({"datetime.timedelta": [10**10]}, nested(201), [0] * 1_000_001),
    ],
    ids=lambda part: json.dumps(part)[:40],
)
def test_nonsense_is_a_value_error(part: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says
        decode(part)


def test_a_line_that_nests_deep_is_a_value_error() -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode(read_line(b"[" * 100_000 + b"]" * 100_000 + b"\n"))
