"""What passes between a candidate's process and the tests, as the candidate's side has it.

Its own objects by number, the tests' functions as functions that call back, exceptions with their class, arguments and cause.
"""

from __future__ import annotations

import builtins
import json
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.library_classes import fields_of_exception, library_exception, library_value
from agentrl.sandboxes.inside.plain_data import CHANGEABLE, NO_ITEMS, Items
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.special_methods import operators
from agentrl.sandboxes.inside.tests_objects import (
    TEXT,
    OpenObject,
    Origin,
    TestIterator,
    TestObject,
    closed_object,
    open_class,
    open_exception,
    passing_for,
    signature,
)

KEPT_OBJECTS = 100_000
CAUSES = 5
"""How many causes and contexts of an exception's are told, each that of the one before."""


CallBack = Callable[[int, tuple[Any, ...], dict[str, Any], dict[str, str]], Any]
"""Calls what the tests have given by number, or does with it what the last argument says."""


class TooManyObjectsError(BaseException):
    """The tests have been given more objects than are kept for them."""


class Objects:
    """The objects of both sides, as the candidate's process knows them."""

    def __init__(
        self,
        call_back: CallBack,
        *,
        named: Callable[[str], Any],
        mirrored: Callable[[int, Any], Any],
        part: Callable[[int, Any], Any],
    ) -> None:
        self._call_back = call_back
        self._named = named
        """Gives an attribute of the candidate's module by its name."""
        self._mirrored = mirrored
        """Gives what both sides have by its number; with its data, what the tests send to be mirrored."""
        self._part = part
        """Has a container in what the tests send to be mirrored."""
        self._copies: list[tuple[int, str, Any, str]] = []
        """Of what the tests' objects hold: the object and the name that gave it, the copy, and what it was, as JSON: True is equal to 1."""
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._of_tests: dict[int, Any] = {}
        self._tests_numbers: dict[int, int] = {}
        self._unbinding: set[int] = set()
        """The functions that stand for what is no method of a class that it is set in."""
        self._library: dict[int, tuple[str, Any]] = {}
        """What the tests gave of the standard library's, and its name."""
        self._named_tuples: dict[str, Any] = {}
        self._keys_of_tuples: dict[type, str] = {}

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]

    def number(self, value: Any) -> int:
        """Return the number of an object, which has one from then on.

        Raises:
            TooManyObjectsError: The tests were given more objects than are kept.
        """
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._objects) >= KEPT_OBJECTS:
                raise TooManyObjectsError("the tests were given more objects than are kept")
            number = self._numbers[id(value)] = len(self._objects) + 1
            self._objects[number] = value
        return number

    def in_class(self, value: Any) -> Any:
        """Return what a class is to have so that it gives this value: what is no function of Python's in plain Python is no method."""
        return staticmethod(value) if id(value) in self._unbinding else value

    def encode(self, value: Any, items: Items = NO_ITEMS) -> Any:
        """Return a value as it is sent, with the containers that both sides have."""
        return encode(value, self._refer, subclass=self._refer_with_value, items=items)

    def decode(self, data: Any) -> Any:
        """Return the value that the tests have sent."""
        return decode(data, self.dereference)

    def _refer_with_value(self, value: Any, plain: Any) -> Any:
        """Return what stands for an object of a subclass of a plain class."""
        key = self._keys_of_tuples.get(type(value))
        return self._refer(value, plain) if key is None else {"fields": [key, plain]}

    def _named_tuple(self, key: str, value: Any) -> Any:
        """Return a named tuple of the tests'."""
        if key not in self._named_tuples:
            name, *fields = json.loads(key)
            kind = self._named_tuples[key] = namedtuple(name, fields)
            self._keys_of_tuples[kind] = key
        return self._named_tuples[key](*value)

    def encode_error(self, error: BaseException, depth: int = 0) -> dict[str, Any]:
        """Return an exception: its number, class, arguments, and where its class is Python's own, attributes and cause."""
        if id(error) in self._tests_numbers:
            return {"own": self._tests_numbers[id(error)]}
        attributes = {}
        names = fields_of_exception(type(error))
        fields = {name: value for name in names if (value := getattr(error, name, None)) is not None}
        for name, value in {**fields, **vars(error)}.items():
            try:
                attributes[name] = self.encode(value)
            except Exception:  # noqa: S112 (an attribute that cannot pass is not there)
                continue
        try:
            args = [self.encode(item) for item in error.args]
        except Exception:
            args = [str(error)]
        cause, context = (error.__cause__, error.__context__) if depth < CAUSES else (None, None)
        return {
            "error": {
                "ref": self.number(error),
                "class": self.class_reference(type(error)),
                "args": args,
                "attributes": attributes,
                "cause": None if cause is None else self.encode_error(cause, depth + 1),
                "context": None if context is None or context is cause else self.encode_error(context, depth + 1),
                "suppress_context": error.__suppress_context__,
            }
        }

    def class_reference(self, kind: type) -> Any:
        """Return a class: by name where it is Python's own, else by number."""
        if id(kind) in self._tests_numbers:
            return {"own": self._tests_numbers[id(kind)]}
        if kind.__module__ == "builtins" and getattr(builtins, kind.__name__, None) is kind:
            return {"builtin": kind.__name__}
        return {"class": self.number(kind)}

    def _refer(self, value: Any, plain: Any = None) -> Any:
        number = self._tests_numbers.get(id(_unbound(value)))
        if number is not None:
            return {"own": number}
        if id(value) in self._library:
            return {"library": self._library[id(value)][0]}
        if isinstance(value, BaseException):
            return self.encode_error(value)
        if isinstance(value, type):
            return self.class_reference(value)
        # By its type: an object that answers to any name would see that it is asked for one.
        if type(value) is types.MethodType and getattr(value.__self__, value.__name__, None) == value:
            return {"method": [self._refer(value.__self__), value.__name__]}
        # An object of a class of Python's own has its operators too, so that class is described, and not named.
        return {"ref": [self.number(value), {"class": self.number(type(value))}, plain]}

    def dereference(self, data: Any) -> Any:
        """Return what a reference of the tests' stands for."""
        ((kind, content),) = data.items()
        if kind == "ref":
            return self._objects[content]
        if kind == "method":
            return getattr(self._objects[content[0]], content[1])
        if kind == "builtin":
            return getattr(builtins, content)
        if kind == "library":
            value = library_value(content)
            self._library[id(value)] = (content, value)
            return value
        if kind == "named":
            return self._named(content)
        if kind == "mirrored":
            return self._mirrored(content, None)
        if kind == "mirror":
            return self._mirrored(*content)
        if kind == "item":
            return self._part(content[1], content[2])
        if kind == "fields":
            return self._named_tuple(content[0], self.decode(content[1]))
        if kind == "pattern":
            import re

            return re.compile(self.decode(content[0]), content[1])
        number = content["number"]
        if number not in self._of_tests:
            make = {
                "function": self._function,
                "iterator": self._iterator,
                "opaque": self._opaque,
                "error": self._error,
                "exception": self._exception,
                "kind": self._kind,
                "object": self._object,
            }
            value = self._of_tests[number] = make[kind](content)
            self._tests_numbers[id(value)] = number
        found = self._of_tests[number]
        # Each look at a method gives another object, which is equal to those before.
        return found.__get__(found._agentrl_owner) if kind == "function" and "method_of" in content else found

    def _function(self, content: Any) -> Any:
        number = content["number"]

        bound = "method_of" in content

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call_back(number, args[1:] if bound else args, kwargs, {})

        function.__name__ = function.__qualname__ = content["name"]
        function.__doc__ = content["doc"]
        vars(function).update({name: self.decode(value) for name, value in content["attributes"].items()})
        if content["parameters"] is not None:
            own = [["self", 0, False]] if bound else []
            function.__signature__ = signature([*own, *content["parameters"]])  # type: ignore[attr-defined]
        if not content["binds"]:
            self._unbinding.add(id(function))
        if bound:
            owner = content["method_of"]
            function._agentrl_owner = TestObject() if owner is None else self.decode(owner)  # type: ignore[attr-defined]
        return function

    def _iterator(self, content: Any) -> TestIterator:
        return TestIterator(lambda: self._call_back(content["number"], (), {}, {}))

    def _opaque(self, content: Any) -> TestObject:
        call_back = self._call_back
        if not content["closed"]:
            return object.__new__(type(content["name"], (TestObject,), {}))
        number = content["number"]
        call = (lambda self, *args, **kwargs: call_back(number, args, kwargs, {})) if content["calls"] else None
        return closed_object(number, content["name"], content["names"], content["special"], call)

    def _kind(self, content: Any) -> type:
        """Return a class of the tests' own."""
        bases = tuple(map(self.decode, content["bases"])) or (OpenObject,)
        made = open_class(content["name"], bases, content["special"], Origin(self._use, content["number"]))
        if content["parameters"] is not None:
            made.__signature__ = signature(content["parameters"])  # type: ignore[attr-defined]
        made.__doc__ = content["doc"]
        return made

    def _object(self, content: Any) -> Any:
        kind = self.decode(content["class"])
        if "passes_for" in content:
            kind = passing_for(kind, self.decode(content["passes_for"]))
        made = object.__new__(kind)
        object.__setattr__(made, "_origin", Origin(self._use, content["number"]))
        return made

    def _use(self, number: int, what: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the tests do with an object of theirs what is done with its stand-in."""
        if what == "call":
            return self._call_back(number, args, kwargs, {})
        if what in ("copy", "deepcopy"):
            self._copies = self._give_back(self._copies)
        value = self._call_back(number, args, kwargs, {"what": what, "name": name})
        if what != "get" or type(value) not in CHANGEABLE or name == "__dict__":
            return value
        before = json.dumps(self.encode(value))
        for known in self._copies:
            if known[:2] == (number, name) and known[3] == before:
                return known[2]  # it is the same, and may have changes that the tests' does not have yet
        self._copies.append((number, name, value, before))
        return value

    def give_back_changes(self) -> None:
        """Have the tests make the changes that were made to copies of what their objects hold."""
        copies, self._copies = self._copies, []
        self._give_back(copies)

    def _give_back(self, copies: list[tuple[int, str, Any, str]]) -> list[tuple[int, str, Any, str]]:
        """Have the tests make these changes, and return the copies with what they are now."""
        given_back = []
        for number, name, value, before in copies:
            now = json.dumps(self.encode(value))
            if now != before:
                self._call_back(number, (value,), {}, {"what": "replace", "name": name})
            given_back.append((number, name, value, now))
        return given_back

    def _exception(self, content: Any) -> type[BaseException]:
        known: type[BaseException] | None = library_exception(content, load=True)
        if known is not None:
            return known
        bases = tuple(map(self.decode, content["bases"]))
        if not content["open"]:
            return type(content["name"], bases, {})
        return open_exception(content["name"], bases, self._use, lambda error: self._tests_numbers.get(id(error)))

    def _error(self, content: Any) -> BaseException:
        kind: type[BaseException] = self.decode(content["class"])
        args = [self.decode(item) for item in content["args"]]
        try:
            made = kind(*args)
        except Exception:  # its class wants other arguments
            made = kind.__new__(kind, *args)
            made.args = tuple(args)
        if content.get("text") is not None:
            vars(made)[TEXT] = content["text"]
        vars(made).update({name: self.decode(value) for name, value in content.get("attributes", {}).items()})
        return made


def _unbound(value: Any) -> Any:
    """Return what stands for a method of the tests' without the object that it is bound to; any other value as it is."""
    if type(value) is types.MethodType and getattr(value.__func__, "_agentrl_owner", None) is value.__self__:
        return value.__func__
    return value


def describe_class(kind: type, objects: Objects, path: str | None) -> dict[str, Any]:
    """Return what the tests' side needs to make a stand-in for a class."""
    # Exceptions are real ones there, with what Python's own classes give them.
    given = next((base for base in kind.__mro__ if base.__module__ == "builtins"), object)
    if not issubclass(kind, BaseException):
        given = object
    has = operators(kind, but=given)
    special = sorted(name for name in has if has[name] is not None)
    bases = [objects.class_reference(base) for base in kind.__bases__]
    return {
        "name": kind.__name__,
        "module": kind.__module__,
        "path": path,
        "bases": bases,
        "special": special,
        "unhashable": kind.__hash__ is None,
        "asked_for_instances": type(kind).__instancecheck__
        is not type.__instancecheck__,  # an abstract class, or a protocol
        "makes_dicts": hasattr(kind, "__required_keys__"),
        "generic": hasattr(kind, "__class_getitem__") and not hasattr(type(kind), "__getitem__"),
        "fields": list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else [],
        "more_than_fields": bool(
            {name for name in dir(kind) if name[:1] != "_"} - {*getattr(kind, "_fields", ()), *dir(tuple)}
        ),
    }


def kind_of(value: Any) -> str:
    """Return what a name stands for: a class, a callable or a value."""
    if issubclass(type(value), type):
        return "class"
    return "callable" if callable(value) else "value"
