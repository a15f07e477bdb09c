"""Plain data as JSON: what may pass between a candidate and those who judge it.

Numbers, strings, bytes, None, and lists, tuples, sets and dicts of them. An object of any other class is not data, so that no
method of a candidate's ever runs where its result is judged: it passes as a reference, by number, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LARGEST_PLAIN_INT = 2**63


class NotPlainError(TypeError):
    """A value that is not plain data, or JSON that stands for none."""


def encode(value: Any, refer: Callable[[Any], Any] | None = None) -> Any:
    """`value` as JSON values. `refer` gives what stands for an object that is not plain data. Raises NotPlainError."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        # Decimal digits take quadratic time, and Python limits them.
        return number if -LARGEST_PLAIN_INT < number < LARGEST_PLAIN_INT else {"int": hex(number)}
    if isinstance(value, float):
        number_ = float.__float__(value)
        return number_ if abs(number_) < float("inf") else {"float": repr(number_)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encode(item, refer) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key, refer), encode(item, refer)] for key, item in value.items()]}
    for name, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {name: [encode(item, refer) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes" if isinstance(value, bytes) else "bytearray": value.decode("latin-1")}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), refer)
    if refer is None:
        raise NotPlainError(f"an object of class {type(value).__name__} is not plain data")
    return refer(value)


def decode(data: Any, dereference: Callable[[Any], Any] | None = None) -> Any:
    """The value that `encode` made `data` of. Raises NotPlainError for anything else, whatever it is."""
    try:
        return _decode(data, dereference)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise NotPlainError(f"not plain data: {error}") from None


def _decode(data: Any, dereference: Callable[[Any], Any] | None) -> Any:
    if isinstance(data, list):
        return [_decode(item, dereference) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}[content]
    if kind == "dict":
        return {_decode(key, dereference): _decode(item, dereference) for key, item in content}
    if kind in ("bytes", "bytearray"):
        content = content.encode("latin-1")
        return content if kind == "bytes" else bytearray(content)
    if kind == "complex":
        real, imaginary = (float(_decode(part, None)) for part in content)
        return complex(real, imaginary)
    if kind == "range":
        return range(*map(int, content))
    if kind == "ref":
        if dereference is None:
            raise NotPlainError("a reference where only plain data may be")
        return dereference(content)
    make = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return make(_decode(item, dereference) for item in content)
