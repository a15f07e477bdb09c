"""Plain data as JSON: what may pass between a candidate and those who judge it.

Numbers, strings, bytes, None, and lists, tuples, sets and dicts of them. An object of any other class is not data, so that no
method of a candidate's ever runs where its result is judged: it passes as a reference, by number, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.answer_bounds import OutOfBoundsError, check_hashes

LARGEST_PLAIN_INT = 2**63
LONGEST_RANGE = 10_000_000
"""What looks through a longer one, such as `max`, takes too long."""


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
        check_range(value)
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
    except OutOfBoundsError as error:
        raise NotPlainError(str(error)) from None


def check_range(value: range) -> None:
    """Raise NotPlainError for a range that is too long to look through."""
    if value[:LONGEST_RANGE] != value:
        raise NotPlainError(f"a range of more than {LONGEST_RANGE} numbers is not plain data")


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
        keys = [_decode(key, dereference) for key, _ in content]
        check_hashes(keys)
        return {key: _decode(item, dereference) for key, (_, item) in zip(keys, content)}  # noqa: B905  of the same list
    if kind in ("bytes", "bytearray"):
        content = content.encode("latin-1")
        return content if kind == "bytes" else bytearray(content)
    if kind == "complex":
        real, imaginary = (float(_decode(part, None)) for part in content)
        return complex(real, imaginary)
    if kind == "range":
        numbers = range(*map(int, content))
        check_range(numbers)
        return numbers
    if kind == "ref":
        if dereference is None:
            raise NotPlainError("a reference where only plain data may be")
        return dereference(content)
    make = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    items = [_decode(item, dereference) for item in content]
    if kind != "tuple":
        check_hashes(items)
    return make(items)
