"""Bounds on a candidate's answers, checked on their bytes before anything reads them as JSON.

A short line of JSON can stand for a gigabyte of Python objects, nest deeper than any stack, or hold a number that takes an hour.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from itertools import accumulate
from typing import NamedTuple

MAX_DEPTH = 400
MAX_NUMBER_CHARACTERS = 100
"""Of a number that JSON writes as such: an integer below 2^63 or a float. `encode` takes 25 at most."""
MAX_INTEGER_DIGITS = 1_000_000
"""Of a longer integer, in hexadecimal digits."""
MAX_COLLISIONS = 50
"""Keys of one set or dict with the same hash. Each costs a comparison with all the others."""

_STRING = re.compile(rb'"[^"]*"')
_LONG_INTEGER = re.compile(rb'"int"\s*:\s*"[^"]{%d}' % (MAX_INTEGER_DIGITS + 4))
_SHAPE = bytes(ord({"{": "[", "}": "]"}.get(c, c) if c in '{}[],: "\t\r\n' else "0") for c in map(chr, range(256)))
"""Makes every bracket square, and every character of a number 0."""
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}


class OutOfBoundsError(Exception):
    """An answer that is more than the host or the tester will read; says what there is too much of."""


class Bounds(NamedTuple):
    """How much an answer may hold."""

    length: int = 8 << 20
    """Bytes."""
    items: int = 1_000_000
    """Numbers, strings, lists, tuples and so on, together."""


def check_bounds(answer: bytes, bounds: Bounds = Bounds()) -> None:  # noqa: B008
    """Check that an answer can be read as JSON at little cost, in time linear in it.

    Raises:
        OutOfBoundsError: The answer cannot be read as JSON at little cost.
    """
    if len(answer) > bounds.length:
        raise OutOfBoundsError(f"the answer has {len(answer)} bytes; at most {bounds.length} are read")
    # Without escaped quotes, a string ends at the next quote. A run of backslashes is escaped from its left.
    unescaped = answer.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * bounds.items:
        raise OutOfBoundsError(f"the answer has more than {bounds.items} items")
    if _LONG_INTEGER.search(unescaped):
        raise OutOfBoundsError(f"the answer has an integer of more than {MAX_INTEGER_DIGITS} hexadecimal digits")
    shape = _STRING.sub(b'"', unescaped).translate(_SHAPE)
    if b"0" * (MAX_NUMBER_CHARACTERS + 1) in shape:
        raise OutOfBoundsError(f"the answer has a number of more than {MAX_NUMBER_CHARACTERS} characters")
    if shape.count(b",") + shape.count(b"[") > bounds.items:
        raise OutOfBoundsError(f"the answer has more than {bounds.items} items")
    brackets = shape.translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise OutOfBoundsError(f"the answer is nested more than {MAX_DEPTH} deep")


def check_hashes(keys: Iterable[Hashable]) -> None:
    """Check that keys were not chosen to have the same hash, which make a set or dict quadratic. Puts them into none.

    Raises:
        OutOfBoundsError: Many of them have the same hash.
    """
    hashes = sorted(map(hash, keys))
    if any(low == high for low, high in zip(hashes, hashes[MAX_COLLISIONS:])):  # noqa: B905
        raise OutOfBoundsError(f"more than {MAX_COLLISIONS} keys of a set or dict have the same hash")
