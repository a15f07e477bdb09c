"""Plain data and references written as JSON values: see `plain_data`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from agentrl.sandboxes.inside.plain_data import (
    CONSTANTS,
    DICTS,
    LARGEST_PLAIN_INT,
    NESTED,
    NO_ITEMS,
    PLAIN_BASES,
    PLAIN_CLASSES,
    SEQUENCES,
    STANDARD,
    VIEWS,
    Items,
    NotPlainError,
    check_range,
    checked_decimal,
    checked_parts,
    class_module,
    class_name,
    imported,
    inside,
    name_of_type,
)


def encode(
    value: Any,
    refer: Callable[[Any], Any] | None = None,
    *,
    subclass: Callable[[Any, Any], Any] | None = None,
    items: Items = NO_ITEMS,
) -> Any:
    """Return a value as JSON values.

    A list or the like that is in it twice is {"shared": [1, its content]} at first, and {"again": 1} from then on.

    Args:
        value: Anything.
        refer: Gives what stands for an object that is not plain data.
        subclass: Gives what stands for an object of a subclass of a plain class, from it and its plain value. Default: the
            plain value.
        items: Containers that two sides have. One is {"item": [number of a value, its own there, its content]}, which has null for its
            content from the second time on.

    Raises:
        NotPlainError: Something in it is not plain data, and there is no `refer`.
    """
    return _Encoder(refer, subclass, _found_twice(value) if type(value) in NESTED else {}, items).encode(value)


def _found_twice(value: Any) -> dict[int, int]:
    """Return a number for each container that is in a value more than once, by its id."""
    met: set[int] = set()
    twice: dict[int, int] = {}

    def look(container: Any) -> None:
        if type(container) is not tuple:
            if id(container) in met:
                twice.setdefault(id(container), len(twice) + 1)
                return
            met.add(id(container))
        for item in inside(container):
            if type(item) in NESTED:
                look(item)

    look(value)
    return twice


class _Encoder:
    """Writes one value."""

    def __init__(
        self,
        refer: Callable[[Any], Any] | None,
        subclass: Callable[[Any, Any], Any] | None,
        shared: dict[int, int],
        items: Items = NO_ITEMS,
    ) -> None:
        self._refer = refer
        self._subclass = subclass
        self._shared = shared
        self._items = items
        self._begun: set[int] = set()
        """The numbers of shared containers that were met."""
        self._open: set[int] = set()
        """The ids of containers whose content is being written, of those that are shared or the reader has."""
        self._named: set[int] = set()
        """The ids of containers that the reader has, and whose content is written."""

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if self._subclass is not None and type(value) not in PLAIN_CLASSES and isinstance(value, PLAIN_BASES):
            # It is read apart from what it is in, where nobody knows the numbers.
            return self._subclass(value, _Encoder(self._refer, self._subclass, {})._content(value))
        if self._items and (where := self._items.get(id(value))):
            # What is in a value twice would be written 2^n times, n levels deep.
            written = id(value) in self._named and id(value) not in self._open
            content = None if written else self._content_once(value)
            self._named.add(id(value))
            for of, index in reversed(where):
                content = {"item": [of, index, content]}
            return content
        if self._shared and (number := self._shared.get(id(value))) is not None:
            return self._encode_shared(value, number)
        return self._content(value)

    def _encode_shared(self, value: Any, number: int) -> dict[str, Any]:
        if number in self._begun and id(value) not in self._open:
            return {"again": number}
        self._begun.add(number)
        return {"shared": [number, self._content_once(value)]}

    def _content_once(self, value: Any) -> Any:
        if id(value) in self._open:
            raise NotPlainError(f"a {type(value).__name__} that holds itself is not plain data")
        self._open.add(id(value))
        content = self._content(value)
        self._open.discard(id(value))
        return content

    def _factory(self, factory: Any) -> Any:
        name = name_of_type(factory) if isinstance(factory, type) else None
        return self._refer(factory) if name is None and factory is not None and self._refer is not None else name

    def _each(self, values: Iterable[Any]) -> list[Any]:
        return [self.encode(inner) for inner in values]

    def _content(self, value: Any) -> Any:
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
            return self._each(value)
        if isinstance(value, dict):
            items = [[self.encode(key), self.encode(inner)] for key, inner in value.items()]
            if isinstance(value, defaultdict):
                return {"defaultdict": [self._factory(value.default_factory), items]}
            return {next((name for name, kind in DICTS.items() if isinstance(value, kind)), "dict"): items}
        for name, kind in SEQUENCES.items():
            if isinstance(value, kind):
                return {name: self._each(value)}
        if isinstance(value, bytes | bytearray):
            return {"bytes" if isinstance(value, bytes) else "bytearray": value.decode("latin-1")}
        if isinstance(value, complex):
            return {"complex": self._each((value.real, value.imag))}
        if isinstance(value, deque):
            return {"deque": [self._each(value), value.maxlen]}
        if isinstance(value, range):
            check_range(value)
            return {"range": [value.start, value.stop, value.step]}
        if type(value) in VIEWS:
            return {type(value).__name__: self._each(value)}
        if isinstance(value, slice):
            return {"slice": self._each((value.start, value.stop, value.step))}
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist())
        simple = _encode_simple(value)
        if simple is not None:
            return simple
        if self._refer is None:
            raise NotPlainError(f"an object of class {type(value).__name__} is not plain data")
        return self._refer(value)


def _encode_simple(value: Any) -> dict[str, Any] | None:
    """Values that have nothing inside; None for anything else."""
    kind = type(value)
    name = class_name(kind)
    if name in _STANDARD_CONTENT and class_module(kind) == STANDARD[name]:
        key, content = _STANDARD_CONTENT[name]
        return {key: content(value)}
    if (path := imported("PurePath")) is not None and isinstance(value, path):
        return {"path": str(value)}
    if kind is type and (type_name := name_of_type(value)) is not None:
        return {"type": type_name}
    for name, constant in CONSTANTS.items():
        if value is constant:
            return {"constant": name}
    return None


_STANDARD_CONTENT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "date": ("date", lambda value: value.isoformat()),
    **{name: (name, lambda value: [value.isoformat(), value.fold]) for name in ("datetime", "time")},
    "timedelta": ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    "Decimal": ("decimal", lambda value: str(checked_decimal(value))),
    "Fraction": ("fraction", lambda value: checked_parts([hex(value.numerator), hex(value.denominator)])),
    "UUID": ("uuid", lambda value: value.hex),
}
