"""Looks, after tests have run in one process with a program, for the tricks that models are known to learn.

It stops who replaces functions of Python's or of a test framework, or gives back an object that is equal to everything. It does not
stop who looks for the frames of the test runner.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, classmethod, staticmethod, property)
OF_TESTS = ("test_solution", "tests", "conftest", "unittest.mock")
"""Modules of the tests, which may have wild cards of their own, and of `mock.ANY`, which programs import with other libraries."""
WATCHED = ("unittest", "pytest", "_pytest", "pluggy")
_type, _isinstance, _object = type, isinstance, object  # these are the names that a program would replace


class Guard:
    """What is to be the same after the run as before it."""

    def __init__(self) -> None:
        self._modules = [
            builtins,
            *(module for name, module in sys.modules.items() if name.partition(".")[0] in WATCHED),
        ]
        self._before = [*self._watched()]
        self._classes = {*_subclasses(object)}

    def replaced(self) -> str | None:
        """Return the name of a function that is another one by now; None where none is."""
        for holder, name, value, code in self._before:
            found = holder.get(name)
            if found is not value or getattr(found, "__code__", None) is not code:
                return str(name)
        return None

    def equal_to_everything(self) -> str | None:
        """Return the name of a class made since then whose objects say that they equal one of a class that nobody knows; or None."""
        for kind in [*_subclasses(_object)]:  # each object of a mock makes a class of its own
            if kind in self._classes or kind.__module__ in OF_TESTS or kind.__eq__ is _object.__eq__:
                continue
            with suppress(BaseException):  # an object without its attributes cannot always be asked
                if kind.__new__(kind) == _type("Unknown", (), {})():
                    return str(kind.__name__)
        return None

    def _watched(self) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
        for module in self._modules:
            holders = [
                module.__dict__,
                *(kind.__dict__ for kind in module.__dict__.values() if _isinstance(kind, _type)),
            ]
            for holder in holders:
                for name, value in holder.items():
                    if _isinstance(value, (*_FUNCTIONS, _type)):
                        yield holder, name, value, getattr(value, "__code__", None)


def _subclasses(kind: Any) -> Iterator[Any]:
    """Return all classes below one."""
    waiting, seen = [kind], {kind}
    while waiting:
        children: list[Any] = type.__subclasses__(waiting.pop())
        new = [child for child in children if child not in seen]
        seen.update(new)
        waiting += new
        yield from new
