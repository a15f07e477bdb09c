"""What passes between the tests and the candidate, as the tests have it: values, objects, classes and exceptions."""

from __future__ import annotations

import builtins
import os
import re
import types
from collections import namedtuple
from collections.abc import Callable, Collection, ItemsView, KeysView, ValuesView
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentrl.sandboxes.inside.given import Given
from agentrl.sandboxes.inside.library_classes import (
    fields_of_exception,
    library_exception,
    library_interface,
    library_name,
    pythons_own,
)
from agentrl.sandboxes.inside.mirrors_of_tests import MirrorsOfTests
from agentrl.sandboxes.inside.operators import is_named
from agentrl.sandboxes.inside.own_objects import OwnObjects
from agentrl.sandboxes.inside.plain_data import NO_ITEMS, Items, NotPlainError, is_changeable
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.stand_ins import (
    Method,
    Reference,
    RemoteClass,
    RemoteFunction,
    RemoteObject,
    TupleWithMore,
    class_body,
    reference,
    reference_of_class,
)
from agentrl.sandboxes.inside.wire import Wire

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.candidate_session import Session

DEEPEST_INHERITANCE = 30
LONGEST_NAME = 1_000
"""Of a class of the candidate's."""


class RemoteValues:
    """Every object that the tests have had of the candidate, and every one that they have given it.

    `describe` asks the candidate what a class is, by its number; `of_path` gives what the tests know by a name of its module;
    `check_held` looks at each name that an exception of Python's own, or a named tuple, is to have.
    """

    def __init__(
        self,
        session: Session,
        wire: Wire,
        modules: Collection[str],
        describe: Callable[[int], Any],
        of_path: Callable[[str], Any],
        check_held: Callable[[str, Any], None],
    ) -> None:
        self._session = session
        self._wire = wire
        self._describe = describe
        self._of_path = of_path
        self._check_held = check_held
        self._process = 0
        """The number of the candidate's process. Objects of an earlier one are gone."""
        self._objects: dict[int, Any] = {}
        self._methods: dict[tuple[int, str], tuple[Any, Method]] = {}
        """What the tests have had of an owner's by the name of a method."""
        self._named_tuples: dict[type, Callable[..., Any]] = {}
        self._library: dict[str, Any] = {}
        """What the candidate was given of the standard library's."""
        self.mirrors = MirrorsOfTests(self._encode_part)
        self.given = Given(self.encode, OwnObjects(modules))

    def __len__(self) -> int:
        return len(self._objects)

    def begin_process(self) -> None:
        """Note that the candidate has a new process: what the tests have had of the last one is gone."""
        self._process += 1
        self._objects.clear()
        self._methods.clear()
        self.mirrors.clear()

    def has(self, one: Any) -> bool:
        """Return whether something came from the candidate."""
        return any(one is known for known in self._objects.values())

    def value(self, data: Any) -> Any:
        """Return a value that the candidate has sent."""
        try:
            return decode(data, self._dereference)
        except NotPlainError as error:
            self._wire.wrong(f"the candidate's answer is nonsense: {error}")

    def given_value(self, answer: dict[str, Any]) -> Any:
        """Return what an answer gives. A container may be one that both sides have."""
        return self._note(answer.get("mirrored"), answer.get("ok"))

    def of_call_back(self, data: Any) -> Any:
        """Return what a function of the test's is called with."""
        if type(data) is not dict or "mirror" not in data:
            return self.value(data)
        number, content = data["mirror"]
        return self._note(number, content)

    def _note(self, number: Any, data: Any) -> Any:
        value = self.value(data)
        try:
            return value if number is None else self.mirrors.note(number, value)
        except (NotPlainError, TypeError, RecursionError) as error:
            self._wire.wrong(f"the candidate's answer is nonsense: {error}")
        finally:
            self.mirrors.forget_parts()

    def hear(self, number: Any, data: Any) -> None:
        """Give what both have the content that the candidate says."""
        self.mirrors.hear(number, data, self._dereference)

    def encode(self, value: Any) -> Any:
        """Return a value of the test's, to send."""
        return self._encode(value, self._refer)

    def _encode_part(self, value: Any, items: Items = NO_ITEMS) -> Any:
        return encode(value, self._refer, subclass=self.given.named_tuple, items=items)

    def _encode(self, value: Any, refer: Callable[[Any], Any]) -> Any:
        try:
            return encode(value, refer, subclass=self.given.named_tuple)
        except RecursionError:
            self._wire.ungradable("an argument that has no end")
        except NotPlainError as error:
            self._wire.ungradable(f"an argument that cannot pass: {error}")

    def argument(self, value: Any, numbers: set[int] | None = None, *, mirrors: bool = False) -> Any:
        """Return a value of the test's, to send: where both sides have it, by its number.

        One that a call may change gets one, if the test `mirrors` it. The numbers are added to `numbers`.
        """
        number = self.mirrors.number(value)
        if number is not None:
            data: Any = {"mirrored": number}
        else:
            data = self._encode(value, self._refer_used)
            if mirrors and is_changeable(value):
                number, data = self.mirrors.mirror(value)
                data = {"mirror": [number, data]}
        if number is not None and numbers is not None:
            numbers.add(number)
        return data

    def owner(self, owner: Any) -> Any:
        """Return what stands for the object that is asked."""
        return None if owner is None else self._refer(owner)

    def _number(self, where: Reference) -> int:
        if where.number is None or where.process != self._process:
            self._wire.wrong("an object of a process of the candidate's that has ended")
        return where.number

    def number_of(self, method: Method) -> int:
        """Return the number of a method that the tests hold by itself."""
        if method.number is None or method.process != self._process:
            self._wire.wrong("a method of a process of the candidate's that has ended")
        return method.number

    def hold_methods(self, of: Any, name: str, number: Callable[[Any], int | None]) -> None:
        """Have the tests hold by itself what they have had by a name that is about to be set anew.

        It is that of an object, or of all those that may be of a class. `number` asks for the number of an owner's.
        """
        for key, (owner, method) in [*self._methods.items()]:
            if key[1] == name and (owner is of or isinstance(of, RemoteClass)):
                del self._methods[key]
                method.number, method.process = number(owner), self._process

    def _refer_used(self, value: Any) -> Any:
        if issubclass(type(value), RemoteObject):
            reference(value).touched = True
        return self._refer(value)

    def touched(self, owner: Any) -> Any:
        """Return the same as `owner`, for a request that may change the object."""
        if isinstance(owner, RemoteObject):
            reference(owner).touched = True
        return self.owner(owner)

    def _refer(self, value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, RemoteObject):
            return {"ref": self._number(reference(value))}
        if issubclass(kind, RemoteClass):
            where = reference_of_class(value)
            return {"named": where.path} if where.path is not None else {"ref": self._number(where)}
        if kind is RemoteFunction:
            if value._agentrl_method.number is not None:
                return {"ref": self.number_of(value._agentrl_method)}
            owner, name = value._agentrl_owner, value._agentrl_name
            return {"named": name} if owner is None else {"method": [self._number(_where(owner)), name]}
        name = str(getattr(value, "__name__", ""))
        if value is not None and getattr(builtins, name, None) is value:
            return {"builtin": name}
        if isinstance(value, KeysView | ValuesView | ItemsView):
            return self.encode(list(value))
        if kind in (types.MappingProxyType, type(os.environ)):
            return self.encode(dict(value))
        if kind is re.Pattern:
            return {"pattern": [self.encode(value.pattern), value.flags]}
        if (known := library_name(value)) is not None:
            self._library[known] = value
            return {"library": known}
        return self.given.describe(value)

    def _dereference(self, data: Any) -> Any:
        ((kind, content),) = data.items()
        if kind == "ref":
            number, class_data, plain = content
            stand_in = self._class(class_data, 0)
            if plain is not None and not is_named(stand_in):
                value = self._with_fields(decode(plain, self._dereference), stand_in)
                if (
                    isinstance(stand_in, RemoteClass)
                    and reference_of_class(stand_in).more_than_fields
                    and isinstance(value, TupleWithMore)
                ):
                    value._agentrl_object = self._object(int(number), stand_in)
                return value
            found = self._object(int(number), stand_in)
            reference(found).is_data = reference(found).is_data or plain is not None
            return found
        if kind in ("class", "builtin"):
            return self._class(data, 0)
        if kind == "method":
            owner, name = self._dereference(content[0]), content[1]
            if not isinstance(owner, RemoteObject | RemoteClass):
                raise NotPlainError("a method of nothing")
            _, method = self._methods.setdefault((id(owner), str(name)), (owner, Method()))
            return RemoteFunction(self._session, owner, str(name), method)
        if kind == "own":
            return self.given[content]
        if kind == "library":
            return self._library[content]
        if kind == "known":
            return self.mirrors[content]
        if kind == "item":
            return self.mirrors.part(*content)
        if kind == "fields":
            return self.given.tuple_of_fields(content[0], decode(content[1], self._dereference))
        if kind == "error":
            return self._error(content)
        raise NotPlainError(f"nothing is called {kind}")

    def _with_fields(self, value: Any, kind: Any) -> Any:
        """Return a tuple of a candidate's named tuple, as one of the tests' own; any other value as it is."""
        fields = reference_of_class(kind).fields if isinstance(kind, RemoteClass) else ()
        if not fields or type(value) is not tuple or len(value) != len(fields):
            return value
        for field, item in zip(fields, value, strict=True):
            self._check_held(field, item)
        known = self._named_tuples.get(kind)
        if known is None:
            make: Any = namedtuple
            made = make(kind.__name__, fields)
            if reference_of_class(kind).more_than_fields:
                made = type(kind.__name__, (TupleWithMore, made), {})
            known = self._named_tuples[kind] = made
        return known(*value)

    def _object(self, number: int, kind: Any) -> Any:
        if number not in self._objects:
            if not (isinstance(kind, RemoteClass) and issubclass(kind, RemoteObject)):
                kind = self._make_class(
                    {"name": str(kind.__name__), "module": "builtins", "special": [], "bases": []}, None, 0
                )
            made = kind.__new__(kind) if issubclass(kind, BaseException) else object.__new__(kind)
            object.__setattr__(made, "_agentrl", Reference(self._session, number, self._process))
            self._objects[number] = made
        return self._objects[number]

    def _class(self, data: Any, depth: int) -> Any:
        ((kind, content),) = data.items()
        if depth > DEEPEST_INHERITANCE:
            raise NotPlainError("a class of endless bases")
        if kind in ("builtin", "own"):
            found = getattr(builtins, content) if kind == "builtin" else self.given[content]
            if not isinstance(found, type):
                raise NotPlainError(f"{content} is no class")
            return found
        number = int(content)
        if number not in self._objects:
            info = self._describe(number)
            path = info["path"]
            known = self._of_path(path) if path is not None else None
            self._objects[number] = known or library_exception(info) or self._make_class(info, number, depth)
        return self._objects[number]

    def _make_class(self, info: Any, number: int | None, depth: int) -> RemoteClass:
        where = Reference(self._session, number, self._process, None if info.get("path") is None else str(info["path"]))
        bases = [base for base in (self._class(base, depth + 1) for base in info["bases"]) if _fits(base)]
        if not any(issubclass(base, RemoteObject) for base in bases):
            bases.insert(0, RemoteObject)
        where.asked_for_instances = bool(info.get("asked_for_instances"))
        where.makes_dicts = bool(info.get("makes_dicts"))
        where.generic = bool(info.get("generic"))
        where.more_than_fields = bool(info.get("more_than_fields"))
        where.fields = tuple(map(str, info.get("fields", ())))
        body = class_body(where, [str(name) for name in info["special"]], unhashable=bool(info.get("unhashable")))
        if (kind := pythons_own(info)) is not None:
            body["__class__"] = property(lambda _: kind)
        name = str(info["name"])
        if len(name) > LONGEST_NAME:  # it is in what every report of a test says
            self._wire.wrong(f"the candidate has a class with a name of {len(name)} characters")
        made = RemoteClass(name, tuple(bases), body)
        if (interface := library_interface(info)) is not None:
            interface.register(made)
        return made

    def _error(self, content: Any) -> BaseException:
        """Return an exception of the candidate's, the same object each time."""
        number = int(content["ref"])
        if number in self._objects:
            return self._objects[number]  # type: ignore[no-any-return]
        kind = self._class(content["class"], 0)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = Exception
        args = [self.value(item) for item in content["args"]]
        if issubclass(kind, RemoteObject):
            made: BaseException = self._object(number, kind)
            made.args = tuple(args)
            pythons = next(base for base in kind.__mro__ if base.__module__ == "builtins")
            with suppress(Exception):  # fills what Python's own classes make of their arguments
                pythons.__init__(made, *args)
        else:
            made = kind.__new__(kind, *args)
            try:
                made.__init__(*args)  # type: ignore[misc]
            except Exception:
                made = kind.__new__(kind, *args)
                made.args = tuple(args)
            self._objects[number] = made
        fields = fields_of_exception(kind)
        for name, value in dict(content["attributes"]).items():
            # What else the candidate's own classes have, it is asked for.
            if name in fields or (not issubclass(kind, RemoteObject) and (name[:2] != "__" or name == "__notes__")):
                found = self.value(value)
                self._check_held(name, found)
                with suppress(Exception):  # it may only be read
                    (object.__setattr__ if name in fields else setattr)(made, str(name), found)
        if content["cause"] is not None:
            made.__cause__ = self.value(content["cause"])
        if content["context"] is not None:
            made.__context__ = self.value(content["context"])
        made.__suppress_context__ = bool(content["suppress_context"])
        return made


def _where(stand_in: Any) -> Reference:
    return reference_of_class(stand_in) if isinstance(stand_in, RemoteClass) else reference(stand_in)


def _fits(base: type) -> bool:
    return isinstance(base, RemoteClass) or issubclass(base, BaseException)
