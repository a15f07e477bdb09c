"""Plain data and references read from JSON values: see `plain_data`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from agentrl.sandboxes.inside.answer_bounds import MAX_DEPTH, OutOfBoundsError, check_hashes
from agentrl.sandboxes.inside.plain_data import (
    CHANGEABLE,
    CONSTANTS,
    DICTS,
    MOST_ITEMS,
    SEQUENCES,
    VIEWS,
    NotPlainError,
    check_range,
    checked_decimal,
    checked_parts,
    standard,
    type_called,
)

_VIEWS = {kind.__name__: make for kind, make in VIEWS.items()}


def decode(data: Any, dereference: Callable[[Any], Any] | None = None, *, most_items: int = MOST_ITEMS) -> Any:
    """Return the value that `encode` made `data` of.

    Args:
        data: JSON values.
        dereference: Gives the object that a JSON object of one key stands for, where that key is none of plain data's.
        most_items: How many items the value may have, where those of a container count each time it is there.

    Raises:
        NotPlainError: Anything else, whatever it is.
    """
    return decode_and_count(data, dereference, most_items=most_items)[0]


def decode_and_count(
    data: Any, dereference: Callable[[Any], Any] | None = None, *, most_items: int = MOST_ITEMS
) -> tuple[Any, int]:
    """Do as `decode` does; return also how many items the value has.

    Raises:
        NotPlainError: The data are nothing that `encode` has made, or too large.
    """
    decoder = _Decoder(dereference, most_items)
    try:
        return decoder.decode(data, 0), decoder.items
    except (ArithmeticError, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise NotPlainError(f"not plain data: {error}") from None
    except OutOfBoundsError as error:
        raise NotPlainError(str(error)) from None


class _Decoder:
    """Reads one value."""

    def __init__(self, dereference: Callable[[Any], Any] | None, most_items: int) -> None:
        self.items = 0
        """How many items there are so far, where those of a container count each time it is there."""
        self._dereference = dereference
        self._most_items = most_items
        self._shared: dict[int, _Shared] = {}
        self._met: dict[tuple[int, int], _Shared] = {}
        """What the reader has, and has been named already."""
        self._deepest = 0

    def decode(self, data: Any, depth: int) -> Any:
        if isinstance(data, list):
            return self._list(data, depth)
        if not isinstance(data, dict):
            return data
        ((kind, content),) = data.items()
        if kind in SEQUENCES:
            items = self._list(content, depth)
            if kind != "tuple":
                check_hashes(items)
            return SEQUENCES[kind](items)
        if kind == "dict" or kind in DICTS or kind == "defaultdict":
            factory, pairs = content if kind == "defaultdict" else (None, content)
            keys = self._list([key for key, _ in pairs], depth)
            check_hashes(keys)
            made = dict(zip(keys, self._list([item for _, item in pairs], depth), strict=True))
            if kind == "defaultdict":
                return defaultdict(self._factory(factory), made)
            return DICTS[kind](made) if kind in DICTS else made
        if kind == "deque":
            items_, length = content
            return deque(self._list(items_, depth), None if length is None else int(length))
        if kind in _VIEWS:
            items = self._list(content, depth)
            check_hashes([key for key, _ in items] if kind == "dict_items" else items if kind == "dict_keys" else [])
            return _VIEWS[kind](items)
        if kind == "slice":
            return slice(*self._list(content, depth))
        if kind == "shared":
            number, inner = content
            return self._share(number, inner, depth)
        if kind == "again":
            return self._again(content, depth)
        if kind == "item" and self._dereference is not None:
            return self._item(*content, depth=depth)
        if kind in _SIMPLE:
            return _SIMPLE[kind](content)
        if self._dereference is None:
            raise NotPlainError("a reference where only plain data may be")
        return self._dereference(data)

    def _factory(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return None if data is None else type_called(data)
        if self._dereference is None:
            raise NotPlainError("a function where only plain data may be")
        return self._dereference(data)

    def _list(self, data: Any, depth: int) -> list[Any]:
        self.items += len(data)
        self._deepest = max(self._deepest, depth + 1)
        return [self.decode(item, depth + 1) for item in data]

    def _share(self, number: Any, content: Any, depth: int) -> Any:
        known = self._measured(content, depth)
        if type(known.value) not in CHANGEABLE:
            raise NotPlainError(f"a {type(known.value).__name__} that has two names")
        self._shared[number] = known
        return known.value

    def _item(self, number: int, index: int, content: Any, *, depth: int) -> Any:
        if (number, index) in self._met:
            return self._once_more(self._met[number, index], depth)
        assert self._dereference is not None
        known = self._measured(content, depth)
        value = self._dereference({"item": [number, index, known.value]})
        self._met[number, index] = known._replace(value=value)
        return value

    def _again(self, number: Any, depth: int) -> Any:
        return self._once_more(self._shared[number], depth)

    def _measured(self, content: Any, depth: int) -> _Shared:
        """Decode a container that may be there once more, and measure it."""
        items, deepest, self._deepest = self.items, self._deepest, depth
        value = self.decode(content, depth)
        known = _Shared(value, self.items - items, self._deepest - depth)
        self._deepest = max(deepest, self._deepest)
        return known

    def _once_more(self, known: _Shared, depth: int) -> Any:
        """Count what is in a container again: a value of n levels, each with two of the next, has 2^n items.

        Raises:
            OutOfBoundsError: The value has too many items, or they go too deep.
        """
        self.items += known.items
        self._deepest = max(self._deepest, depth + known.depth)
        if self.items > self._most_items or self._deepest > MAX_DEPTH:
            raise OutOfBoundsError("what is there more than once makes the value too large")
        return known.value


class _Shared(NamedTuple):
    """A container that is in a value more than once, how many items it has in all, and how deep they go."""

    value: Any
    items: int
    depth: int


def _of_iso_format(name: str, content: Any) -> Any:
    text, fold = content
    return standard(name).fromisoformat(text).replace(fold=fold)


def _range(content: Any) -> range:
    numbers = range(*map(int, content))
    check_range(numbers)
    return numbers


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": lambda content: {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}[content],
    "bytes": lambda content: content.encode("latin-1"),
    "bytearray": lambda content: bytearray(content.encode("latin-1")),
    "complex": lambda content: complex(*map(float, decode(content))),
    "range": _range,
    "datetime": lambda content: _of_iso_format("datetime", content),
    "date": lambda content: standard("date").fromisoformat(content),
    "time": lambda content: _of_iso_format("time", content),
    "timedelta": lambda content: standard("timedelta")(*map(int, content)),
    "decimal": lambda content: checked_decimal(standard("Decimal")(str(content))),
    "fraction": lambda content: standard("Fraction")(*(int(part, 16) for part in checked_parts(content))),
    "uuid": lambda content: standard("UUID")(hex=content),
    "path": lambda content: standard("Path")(content),
    "type": type_called,
    "constant": CONSTANTS.__getitem__,
}
