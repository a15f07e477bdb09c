"""Plain data as JSON: what may pass between a candidate and those who grade it.

Numbers, strings, bytes, dates, None, and lists, tuples, sets, dicts and the like of them. An object of any other class is not
data, so that no method of a candidate's ever runs where its result is graded: it passes as a reference, by number, or not at all.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from agentrl.sandboxes.inside.answer_bounds import MAX_DEPTH, Bounds, OutOfBoundsError, check_hashes

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
_VIEWS = {kind.__name__: make for kind, make in VIEWS.items()}
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
_NESTED = {*CHANGEABLE, tuple}
Items = Mapping[int, list[tuple[int, int]]]
"""For containers that two sides have, by their ids: each number of a value that it is in, and its own number there."""
NO_ITEMS: Items = {}


def encode(
    value: Any,
    refer: Callable[[Any], Any] | None = None,
    *,
    subclass: Callable[[Any, Any], Any] | None = None,
    items: Items = NO_ITEMS,
) -> Any:
    """`value` as JSON values. Raises NotPlainError.

    A list or the like that is in it twice is {"shared": [1, its content]} at first, and {"again": 1} from then on.

    Args:
        refer: Gives what stands for an object that is not plain data.
        subclass: Gives what stands for an object of a subclass of a plain class, from it and its plain value. Default: the
            plain value.
        items: Containers that two sides have. One is {"item": [number of a value, its own there, its content]}, which has null for its
            content from the second time on.
    """
    return _Encoder(refer, subclass, _found_twice(value) if type(value) in _NESTED else {}, items).encode(value)


def inside(value: Any) -> Iterable[Any]:
    """What is in a container that may itself be a container which a program may change."""
    kind = type(value)
    if kind in (list, tuple, deque):
        return value  # type: ignore[no-any-return]
    return value.values() if kind in (dict, OrderedDict, defaultdict, Counter) else ()


def is_changeable(value: Any) -> bool:
    """Whether a program may change a value: a list, dict, set or the like, or a tuple with one in it."""
    kind = type(value)
    return kind in CHANGEABLE or (
        kind is tuple and any(type(item) in _NESTED and is_changeable(item) for item in value)
    )


def _found_twice(value: Any) -> dict[int, int]:
    """A number for each container that is in a value more than once, by its id."""
    met: set[int] = set()
    twice: dict[int, int] = {}

    def look(container: Any) -> None:
        if type(container) is not tuple:
            if id(container) in met:
                twice.setdefault(id(container), len(twice) + 1)
                return
            met.add(id(container))
        for item in inside(container):
            if type(item) in _NESTED:
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
    name = _class_name(kind)
    if name in _STANDARD_CONTENT and _class_module(kind) == STANDARD[name]:
        key, content = _STANDARD_CONTENT[name]
        return {key: content(value)}
    if (path := _imported("PurePath")) is not None and isinstance(value, path):
        return {"path": str(value)}
    if kind is type and (type_name := name_of_type(value)) is not None:
        return {"type": type_name}
    for name, constant in CONSTANTS.items():
        if value is constant:
            return {"constant": name}
    return None


_class_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_class_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
"""What a class itself says, whatever its metaclass or whoever patches its module says."""
_STANDARD_CONTENT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "date": ("date", lambda value: value.isoformat()),
    **{name: (name, lambda value: [value.isoformat(), value.fold]) for name in ("datetime", "time")},
    "timedelta": ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    "Decimal": ("decimal", lambda value: str(_checked_decimal(value))),
    "Fraction": ("fraction", lambda value: _checked_parts([hex(value.numerator), hex(value.denominator)])),
    "UUID": ("uuid", lambda value: value.hex),
}


def _imported(name: str) -> Any:
    """A class of STANDARD, or None as long as nobody has imported its module: then no value is of it."""
    return getattr(sys.modules.get(STANDARD[name]), name, None)


def _standard(name: str) -> Any:
    return getattr(importlib.import_module(STANDARD[name]), name)


def name_of_type(kind: type) -> str | None:
    """What a class that both sides have is called; None for any other."""
    name = _class_name(kind)
    known = _imported(name) if name in STANDARD else BUILTIN_TYPES.get(name)
    return name if kind is known else None


def _type_called(name: str) -> Any:
    return _standard(name) if name in STANDARD else BUILTIN_TYPES[name]


def decode(data: Any, dereference: Callable[[Any], Any] | None = None, *, most_items: int = MOST_ITEMS) -> Any:
    """Return the value that `encode` made `data` of. Raises NotPlainError for anything else, whatever it is.

    Args:
        data: JSON values.
        dereference: Gives the object that a JSON object of one key stands for, where that key is none of plain data's.
        most_items: How many items the value may have, where those of a container count each time it is there.
    """
    return decode_and_count(data, dereference, most_items=most_items)[0]


def decode_and_count(
    data: Any, dereference: Callable[[Any], Any] | None = None, *, most_items: int = MOST_ITEMS
) -> tuple[Any, int]:
    """Do as `decode` does; return also how many items the value has."""
    decoder = _Decoder(dereference, most_items)
    try:
        return decoder.decode(data, 0), decoder.items
    except (ArithmeticError, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise NotPlainError(f"not plain data: {error}") from None
    except OutOfBoundsError as error:
        raise NotPlainError(str(error)) from None


def check_range(value: range) -> None:
    """Raise NotPlainError for a range that is too long to look through."""
    if value[:LONGEST_RANGE] != value:
        raise NotPlainError(f"a range of more than {LONGEST_RANGE} numbers is not plain data")


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
            return None if data is None else _type_called(data)
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
        """Count what is in a container again: a value of n levels, each with two of the next, has 2^n items."""
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


def _checked_decimal(number: Any) -> Any:
    """Return a Decimal. Raises NotPlainError for one that is slow or unsafe to compare."""
    if number.is_snan():
        raise NotPlainError("a Decimal that raises where it is compared")
    if number.is_finite() and abs(number.adjusted()) > LARGEST_EXPONENT:
        raise NotPlainError(f"a Decimal with an exponent beyond {LARGEST_EXPONENT}")
    return number


def _checked_parts(parts: list[str]) -> list[str]:
    """Return numerator and denominator of a Fraction. Raises NotPlainError where they are too long."""
    if any(len(part) > LONGEST_OF_FRACTION for part in parts):
        raise NotPlainError(f"a Fraction of more than {LONGEST_OF_FRACTION} hexadecimal digits")
    return parts


def _of_iso_format(name: str, content: Any) -> Any:
    text, fold = content
    return _standard(name).fromisoformat(text).replace(fold=fold)


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
    "date": lambda content: _standard("date").fromisoformat(content),
    "time": lambda content: _of_iso_format("time", content),
    "timedelta": lambda content: _standard("timedelta")(*map(int, content)),
    "decimal": lambda content: _checked_decimal(_standard("Decimal")(str(content))),
    "fraction": lambda content: _standard("Fraction")(*(int(part, 16) for part in _checked_parts(content))),
    "uuid": lambda content: _standard("UUID")(hex=content),
    "path": lambda content: _standard("Path")(content),
    "type": _type_called,
    "constant": CONSTANTS.__getitem__,
}
