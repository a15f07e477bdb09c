"""Plain data as lines of JSON: all that passes between a program and its tests.

    value ── encode ──► JSON parts ── write_line ──► bytes ── read_line ──► JSON parts ── decode ──► an equal value

Text, numbers, true, false, null and lists are written as themselves, and anything else as an object with one key, which is its type:
(1, b"a") is {"tuple": [1, {"bytes": "61"}]}. Types are exact: an object of a subclass could behave in any way.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 200
MAX_ITEMS = 1_000_000
MAX_OF_ITERATOR = 10_000
"""As many does an iterator give that may have no end."""
LARGE_INT_BITS = 10_000
"""A larger integer is written in hexadecimal, which takes a time in proportion to its length."""

_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_SEQUENCES |= {"iter": iter, "range": lambda items: range(*items)}
_MAPPINGS: dict[str, Callable[[Any], Any]] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_LIBRARY: dict[str, Callable[[Any], list[Any]]] = {
    "datetime.date": lambda value: [value.isoformat()],
    "datetime.time": lambda value: [value.isoformat()],
    "datetime.datetime": lambda value: [value.isoformat()],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
}
"""Values of the standard library, by the arguments that make them anew."""


class NotPlainError(ValueError):
    """A value that cannot pass."""


def encode(value: Any) -> Any:
    """Return a value as JSON parts.

    Raises:
        NotPlainError: It is or holds something other than plain data, or is too large or too deep.
    """
    return _encode(value, iter(range(MAX_ITEMS)), 0)


def _encode(value: Any, room: Iterator[int], depth: int) -> Any:
    if depth > MAX_DEPTH or next(room, None) is None:
        raise NotPlainError(f"data of more than {MAX_ITEMS:,} items, or nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if value.bit_length() < LARGE_INT_BITS else {"int": hex(value)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is list:
        return [_encode(item, room, depth + 1) for item in value]
    if kind in _SEQUENCES.values():
        return {kind.__name__: [_encode(item, room, depth + 1) for item in value]}
    if kind in _MAPPINGS.values() or kind is defaultdict:
        pairs = [[_encode(key, room, depth + 1), _encode(item, room, depth + 1)] for key, item in value.items()]
        return {"dict" if kind is defaultdict else kind.__name__: pairs}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a named tuple
        return _encode(tuple(value), room, depth)
    name = f"{kind.__module__}.{kind.__name__}"
    if name in _LIBRARY and kind is getattr(sys.modules[kind.__module__], kind.__name__):
        return {name: [_encode(item, room, depth + 1) for item in _LIBRARY[name](value)]}
    if kind.__module__ == "numpy":
        return _encode(value.tolist(), room, depth)
    if hasattr(kind, "__next__") and len(value := [*islice(value, MAX_OF_ITERATOR + 1)]) > MAX_OF_ITERATOR:
        raise NotPlainError(f"an iterator of more than {MAX_OF_ITERATOR:,} items, which may have no end")
    if kind.__name__ == "range" or kind.__name__.startswith("dict_") or hasattr(kind, "__next__"):
        return [_encode(item, room, depth + 1) for item in value]
    raise NotPlainError(f"an object of class {kind.__qualname__[:200]}, which is not plain data")


def encode_arguments(values: list[Any]) -> list[Any]:
    """Return arguments as JSON parts. Iterators and ranges stay such: a program may ask more of them than of a list.

    Raises:
        NotPlainError: One cannot pass.
    """
    listed = [[value.start, value.stop, value.step] if type(value) is range else value for value in values]
    parts: list[Any] = encode(listed)
    for index, value in enumerate(values):
        if type(value) is range:
            parts[index] = {"range": parts[index]}
        elif hasattr(type(value), "__next__"):
            parts[index] = {"iter": parts[index]}
    return parts


def decode(part: Any) -> Any:
    """Return the value that JSON parts stand for.

    Raises:
        ValueError: They make no sense, or exceed the bounds.
    """
    return _decode(part, iter(range(MAX_ITEMS)), 0)


def _decode(part: Any, room: Iterator[int], depth: int) -> Any:
    if depth > MAX_DEPTH or next(room, None) is None:
        raise ValueError("too many items, or nested too deep")
    if isinstance(part, list):
        return [_decode(item, room, depth + 1) for item in part]
    if not isinstance(part, dict):
        return part
    if len(part) != 1:
        raise ValueError("an object without a type")
    ((kind, content),) = part.items()
    try:
        if kind == "int":
            return int(content, 16)
        if kind in ("bytes", "bytearray"):
            return (bytes if kind == "bytes" else bytearray).fromhex(content)
        if kind in _MAPPINGS:
            pairs = ((_decode(key, room, depth + 1), _decode(item, room, depth + 1)) for key, item in content)
            return _MAPPINGS[kind](dict(pairs))
        items = [_decode(item, room, depth + 1) for item in content]
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](items)
        if kind in _LIBRARY:
            module, _, name = kind.rpartition(".")
            made = getattr(import_module(module), name)
            return getattr(made, "fromisoformat", made)(*items)
        if kind == "complex":
            return complex(*items)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"no {kind}: {error}") from None
    raise ValueError(f"an unknown type {kind[:200]!r}")


def write_line(message: Any) -> bytes:
    """Return a message as one line.

    Raises:
        NotPlainError: It is longer than any line may be.
    """
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MAX_BYTES:
        raise NotPlainError(f"data of more than {MAX_BYTES >> 20} MB")
    return line


def read_line(line: bytes) -> Any:
    """Return the message of one line.

    Raises:
        ValueError: It is none, or too long.
    """
    if len(line) > MAX_BYTES or not line.endswith(b"\n"):
        raise ValueError("a line that is too long, or cut off")
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
