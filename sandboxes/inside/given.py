"""What the tests have given the candidate that is no plain data: functions, iterators, exceptions and objects of their own, by number."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.foreign import Foreign
from agentrl.sandboxes.inside.library_classes import library_exception
from agentrl.sandboxes.inside.own_objects import OwnObjects
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteFunction, RemoteObject
from agentrl.sandboxes.inside.tests_objects import COPIED

REFUSED_BY_NAME = frozenset({"__enter__", "__exit__", "__iter__", "__next__", "__len__", "__getitem__", "__contains__"})
"""Operators of an object that the candidate may not use which are refused by name, where its class has them."""


FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
)
"""Of what a call is all that a program makes of it."""


class Given:
    """Everything that was given in one session. `encode` gives a value as it is sent."""

    def __init__(self, encode: Callable[[Any], Any], own_objects: OwnObjects) -> None:
        self._encode = encode
        self._own_objects = own_objects
        self._values: dict[int, Any] = {}
        self._numbers: dict[Any, int] = {}
        self._named_tuples: dict[str, type] = {}
        self._uncalled: set[int] = set()
        self._closed: set[int] = set()
        """Numbers of objects of which the candidate has nothing but the names of their attributes."""

    def __getitem__(self, number: Any) -> Any:
        """Return what was given by a number that the candidate says.

        Raises:
            KeyError: One that is none.
        """
        if type(number) is not int:
            raise KeyError(number)
        return self._values[number]

    def has(self, number: int, name: str) -> bool:
        """Return whether an object that was given has an attribute or operator that the candidate cannot have."""
        value = self._values.get(number)
        if number in self._closed:
            names = _names(value)
            return names is None or name in (*names, *_operators(value), COPIED)
        return self._own_objects.is_open(value) and name.startswith("__") and hasattr(value, name)

    def answer(self, number: int, what: str, name: str, args: list[Any]) -> Any:
        """Do with an object what the candidate does with its stand-in.

        Raises:
            KeyError: One that it may not use.
        """
        value = self._values[number]
        if not self._own_objects.is_open(value):
            raise KeyError(number)
        return self._own_objects.answer(value, what, name, args)

    def describe(self, value: Any) -> dict[str, Any]:
        """Return what stands for a value that passes by number alone."""
        kind = type(value)
        number = self._number(value)
        if isinstance(value, BaseException):
            args = [self._encode(item) for item in value.args]
            return {"error": {"number": number, "class": self._encode(kind), "args": args, **self._of_error(value)}}
        if isinstance(value, type) and (issubclass(value, BaseException) or self._own_objects.is_open(value)):
            return {"exception" if issubclass(value, BaseException) else "kind": self._class(value, number)}
        if self._own_objects.is_open(value):
            return {"object": {"number": number, "class": self._kind_of(value), **self._spec(value)}}
        if isinstance(value, FUNCTIONS) or (callable(value) and kind.__module__ in ("functools", "operator")):
            binds = hasattr(kind, "__get__")
            described = {"number": number, **_signature(value), "binds": binds, "attributes": self._attributes(value)}
            return {"function": described | self._owner(value)}
        if hasattr(kind, "__next__"):
            return {"iterator": {"number": number}}
        closed = not isinstance(value, Foreign)
        if closed:
            self._closed.add(number)
        described = {"special": _operators(value), "names": _names(value), "calls": callable(value)} if closed else {}
        return {"opaque": {"number": number, "name": kind.__name__, "closed": closed, **described}}

    def named_tuple(self, value: Any, plain: Any) -> Any:
        """Return what stands for an object of a subclass of a plain class: its plain value, with its fields' names if it has them."""
        fields = getattr(type(value), "_fields", None)
        if not (isinstance(value, tuple) and isinstance(fields, tuple)):
            return plain
        key = json.dumps([type(value).__name__, *fields])
        self._named_tuples.setdefault(key, type(value))
        return {"fields": [key, plain]}

    def tuple_of_fields(self, key: str, value: Any) -> Any:
        """Return a named tuple that the candidate has had of the tests.

        Raises:
            KeyError: One that it has not had.
        """
        return self._named_tuples[key](*value)

    def _owner(self, method: Any) -> dict[str, Any]:
        """Return what a method is bound to: the object itself, where the candidate may use that."""
        if not isinstance(method, types.MethodType):
            return {}
        owner = method.__self__
        usable = not isinstance(owner, type) and self._own_objects.is_open(owner)
        return {"method_of": self._encode(owner) if usable else None}

    def _spec(self, value: Any) -> dict[str, Any]:
        """Return the class of the candidate's, or of the tests' own, that a mock passes for."""
        spec = vars(value).get("_spec_class") if self._own_objects.makes_mocks(type(value)) else None
        own = isinstance(spec, type) and self._own_objects.is_own_class(spec) and not issubclass(spec, BaseException)
        return {"passes_for": self._encode(spec)} if own or isinstance(spec, RemoteClass) else {}

    def _kind_of(self, value: Any) -> dict[str, Any]:
        """Return what stands for the class of an object that the candidate may use; the class itself it may be unable to."""
        kind = type(value)
        if self._own_objects.is_open(kind):
            return self.describe(kind)
        number = self._number(kind)
        self._uncalled.add(number)
        return {"kind": self._class(kind, number)}

    def may_call(self, number: int, args: list[Any], kwargs: dict[str, Any]) -> bool:
        """Return whether the candidate may call what was given.

        Neither a class that it has of an object alone, nor one that makes mocks, with arguments that say what these are equal to.
        """
        if number in self._uncalled:
            return False
        return not (args or kwargs) or not self._own_objects.makes_mocks(self._values[number])

    def _number(self, value: Any) -> int:
        number = self._numbers.setdefault(_identity(value), len(self._values) + 1)
        self._values.setdefault(number, value)  # a method holds its object, whose id is then nobody else's
        return number

    def _class(self, kind: type, number: int) -> dict[str, Any]:
        described: dict[str, Any] = {"number": number, "name": kind.__name__, "module": kind.__module__}
        if issubclass(kind, BaseException):
            return {
                **described,
                "bases": [self._encode(base) for base in kind.__bases__ if issubclass(base, BaseException)],
                "open": self._own_objects.is_own_class(kind),
            }
        bases = [self.describe(base) for base in kind.__bases__ if self._own_objects.is_own_class(base)]
        told = _signature(kind) if self._own_objects.is_open(kind) else {"parameters": None, "doc": None}
        return {**told, **described, "bases": bases, "special": self._own_objects.operators(kind)}

    def _of_error(self, error: BaseException) -> dict[str, Any]:
        """Return what an exception is beside its arguments.

        Of one of a class of the tests' own that is its text, and the candidate asks for its attributes; those that one of Python's own
        classes has been given come with it.
        """
        kind = type(error)
        if self._own_objects.is_own_class(kind):
            return {"text": _text(error) if kind.__str__ not in _TEXTS_OF_PYTHONS_OWN else None}
        if (
            kind.__module__ != "builtins"
            and library_exception({"name": kind.__name__, "module": kind.__module__}) is not kind
        ):
            return {}
        given = {name: value for name, value in vars(error).items() if not name.startswith("_") and value is not error}
        return {"attributes": {name: self._encode(value) for name, value in given.items()}} if given else {}

    def _attributes(self, function: Any) -> dict[str, Any]:
        """Return what the tests have set of a function of their own."""
        own = vars(function) if isinstance(function, types.FunctionType) else {}
        found = {}
        for name, value in own.items():
            try:
                found[name] = encode(value)
            except NotPlainError:  # it is not there
                continue
        return found


_TEXTS_OF_PYTHONS_OWN = (
    BaseException.__str__,
    OSError.__str__,
    KeyError.__str__,
    SyntaxError.__str__,
    ImportError.__str__,
)


def _text(error: BaseException) -> str | None:
    """Return what a class of the tests' own says of an exception; None where it fails at that."""
    try:
        return str(error)
    except Exception:
        return None


def _identity(value: Any) -> Any:
    """Return what tells a value from others. Each look at `button.on_click` gives another method, and all of them are one."""
    if isinstance(value, types.MethodType):
        return id(value.__self__), id(value.__func__)
    if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType | None):
        return id(value.__self__), value.__name__
    return id(value)


def _operators(value: Any) -> list[str]:
    """Return those that are refused by name."""
    return sorted(REFUSED_BY_NAME.intersection(dir(type(value))))


def _names(value: Any) -> list[str] | None:
    """Return what attributes an object of the test's has; None where it may have any."""
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


def is_descriptor(value: Any) -> bool:
    """Return whether a class would have the value decide what its attribute is, such as a property: that cannot pass."""
    ours = isinstance(value, types.FunctionType | types.MethodType | RemoteFunction | RemoteObject | RemoteClass)
    return hasattr(type(value), "__get__") and not ours
