"""What passes between a candidate's process and the tests, as the candidate's side has it: its own objects by number, the tests'
functions as functions that call back, exceptions with their class, arguments and cause.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.plain_data import decode, encode
from agentrl.sandboxes.inside.special_methods import SPECIAL_METHODS

KEPT_OBJECTS = 100_000
CAUSES = 5
"""How many causes of an exception's cause are told."""


class TooManyObjectsError(BaseException):
    """The tests have been given more objects than are kept for them."""


class NeedsTestObjectError(BaseException):
    """The candidate uses an attribute of an object of the tests' own class, which is not here."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, name)
        self.number = number
        self.name = name


class TestObject:
    """An object of the tests' own class: it is equal to itself, and can be kept and given back."""

    __test__ = False


class LentObject(TestObject):
    """One that the tests gave: who uses its attributes needs what cannot pass. What it does not have, it does not have here."""

    _number: int
    _names: list[str] | None
    """Of its attributes; None where it may have any."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("__") or (kind._names is not None and name not in kind._names):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise NeedsTestObjectError(kind._number, name)


class TestIterator:
    """An iterator of the tests', which is asked for each item."""

    __test__ = False

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __iter__(self) -> TestIterator:
        return self

    def __next__(self) -> Any:
        return self._call()


class Objects:
    """The objects of both sides, as the candidate's process knows them."""

    def __init__(self, call_back: Callable[[int, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._call_back = call_back
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._of_tests: dict[int, Any] = {}
        self._tests_numbers: dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]

    def number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._objects) >= KEPT_OBJECTS:
                raise TooManyObjectsError
            number = self._numbers[id(value)] = len(self._objects) + 1
            self._objects[number] = value
        return number

    def encode(self, value: Any) -> Any:
        return encode(value, self._refer, subclass=lambda value, plain: self._refer(value, plain))

    def decode(self, data: Any) -> Any:
        return decode(data, self._dereference)

    def encode_error(self, error: BaseException, depth: int = 0) -> dict[str, Any]:
        """An exception: its number, class, arguments, and where its class is Python's own, attributes and cause."""
        if id(error) in self._tests_numbers:
            return {"own": self._tests_numbers[id(error)]}
        attributes = {}
        for name, value in vars(error).items():
            try:
                attributes[name] = self.encode(value)
            except Exception:  # noqa: S112 (an attribute that cannot pass is not there)
                continue
        try:
            args = [self.encode(item) for item in error.args]
        except Exception:
            args = [str(error)]
        cause = error.__cause__ if depth < CAUSES else None
        return {
            "error": {
                "ref": self.number(error),
                "class": self.class_reference(type(error)),
                "args": args,
                "attributes": attributes,
                "cause": None if cause is None else self.encode_error(cause, depth + 1),
            }
        }

    def class_reference(self, kind: type) -> Any:
        """A class: by name where it is Python's own, else by number."""
        if kind.__module__ == "builtins" and getattr(builtins, kind.__name__, None) is kind:
            return {"builtin": kind.__name__}
        return {"class": self.number(kind)}

    def _refer(self, value: Any, plain: Any = None) -> Any:
        if id(value) in self._tests_numbers:
            return {"own": self._tests_numbers[id(value)]}
        if isinstance(value, BaseException):
            return self.encode_error(value)
        if isinstance(value, type):
            return self.class_reference(value)
        # By its type: an object that answers to any name would see that it is asked for one.
        if type(value) is types.MethodType and getattr(value.__self__, value.__name__, None) == value:
            return {"method": [self._refer(value.__self__), value.__name__]}
        return {"ref": [self.number(value), self.class_reference(type(value)), plain]}

    def _dereference(self, data: Any) -> Any:
        ((kind, content),) = data.items()
        if kind == "ref":
            return self._objects[content]
        if kind == "method":
            return getattr(self._objects[content[0]], content[1])
        if kind == "builtin":
            return getattr(builtins, content)
        if kind == "named":
            return self.named(content)
        if kind == "lent":
            return self.lent(content)
        number = content["number"]
        if number not in self._of_tests:
            make = {
                "function": self._function,
                "iterator": self._iterator,
                "opaque": self._opaque,
                "error": self._error,
            }
            value = self._of_tests[number] = make[kind](content)
            self._tests_numbers[id(value)] = number
        return self._of_tests[number]

    named: Callable[[Any], Any] = staticmethod(lambda name: name)
    """Gives an attribute of the candidate's module by its name."""
    lent: Callable[[Any], Any] = staticmethod(lambda number: number)
    """Gives what was lent to the tests, by its number there."""

    def _function(self, content: Any) -> Any:
        number = content["number"]

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call_back(number, args, kwargs)

        function.__name__ = function.__qualname__ = content["name"]
        function.__doc__ = content["doc"]
        if content["parameters"] is not None:
            import inspect

            made = [
                inspect.Parameter(name, inspect._ParameterKind(kind), default=None if has_default else inspect._empty)
                for name, kind, has_default in content["parameters"]
            ]
            function.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
        return function

    def _iterator(self, content: Any) -> TestIterator:
        return TestIterator(lambda: self._call_back(content["number"], (), {}))

    def _opaque(self, content: Any) -> TestObject:
        if not content["lent"]:
            return object.__new__(type(content["name"], (TestObject,), {}))
        body = {"_number": content["number"], "_names": content["names"]}
        operators = {name: _needed(content["number"], name) for name in content["special"]}
        return object.__new__(type(content["name"], (LentObject,), {**body, **operators}))

    def _error(self, content: Any) -> BaseException:
        base = getattr(builtins, content["base"])
        kind = base if content["name"] == content["base"] else type(content["name"], (base,), {})
        args = [self.decode(item) for item in content["args"]]
        try:
            return kind(*args)  # type: ignore[no-any-return]
        except TypeError:  # its class wants other arguments
            return Exception(*args)


def _needed(number: int, name: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any) -> Any:
        raise NeedsTestObjectError(number, name)

    return refuse


def describe_class(kind: type, objects: Objects, path: str | None) -> dict[str, Any]:
    """What the tests' side needs to make a stand-in for a class."""
    # Exceptions are real ones there, with what Python's own classes give them.
    given = next((base for base in kind.__mro__ if base.__module__ == "builtins"), object)
    if not issubclass(kind, BaseException):
        given = object
    special = sorted(
        name
        for name in SPECIAL_METHODS
        if getattr(kind, name, None) is not None and getattr(kind, name) is not getattr(given, name, None)
    )
    bases = [objects.class_reference(base) for base in kind.__bases__]
    return {
        "name": kind.__name__,
        "module": kind.__module__,
        "path": path,
        "bases": bases,
        "special": special,
        "unhashable": kind.__hash__ is None,
        "exception": issubclass(kind, BaseException),
        "fields": list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else [],
    }
