"""What the tests have given the candidate that is no plain data: functions, iterators, exceptions and objects of their own, by number."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.foreign import Foreign

LENT_SPECIAL = frozenset(
    {"__enter__", "__exit__", "__iter__", "__next__", "__len__", "__getitem__", "__contains__", "__call__"}
)
"""Operators of an object of the test's own class that are refused by name, where the class has them."""


class Given:
    """Everything that was given in one session. `encode` gives a value as it is sent."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._values: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._opaque: set[int] = set()
        """Numbers of objects of the tests' own classes, of which the candidate has nothing but the names of their attributes."""

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def has(self, number: int, name: str) -> bool:
        """Whether an object of the tests' own class that was given has an attribute or operator that did not pass with it."""
        if number not in self._opaque:
            return False
        value = self._values[number]
        names = _names(value)
        return names is None or name in names or name in _operators(value)

    def describe(self, value: Any) -> dict[str, Any]:
        """What stands for a value that passes by number alone."""
        kind = type(value)
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._values)
            self._values.append(value)
        if isinstance(value, BaseException):
            base = next(base.__name__ for base in kind.__mro__ if getattr(builtins, base.__name__, None) is base)
            args = [self._encode(item) for item in value.args]
            return {"error": {"number": number, "name": kind.__name__, "base": base, "args": args}}
        if callable(value):
            return {"function": {"number": number, **_signature(value)}}
        if hasattr(kind, "__next__"):
            return {"iterator": {"number": number}}
        lent = not isinstance(value, Foreign)
        if lent:
            self._opaque.add(number)
        described = {"special": _operators(value), "names": _names(value)} if lent else {}
        return {"opaque": {"number": number, "name": kind.__name__, "lent": lent, **described}}


def _operators(value: Any) -> list[str]:
    """Those of an object of the test's own class that are refused by name."""
    return sorted(LENT_SPECIAL.intersection(dir(type(value))))


def _names(value: Any) -> list[str] | None:
    """What attributes an object of the test's has; None where it may have any."""
    kind = type(value)
    if any(isinstance(getattr(kind, name, None), types.FunctionType) for name in ("__getattr__", "__getattribute__")):
        return None
    return [name for name in dir(value) if not name.startswith("__")]


def _signature(function: Any) -> dict[str, Any]:
    import inspect

    parameters = None
    try:
        found = inspect.signature(function).parameters.values()
        parameters = [[one.name, int(one.kind), one.default is not inspect.Parameter.empty] for one in found]
    except (TypeError, ValueError):
        pass
    doc = function.__doc__ if isinstance(function, types.FunctionType) else None
    return {"name": str(getattr(function, "__name__", "function")), "doc": doc, "parameters": parameters}
