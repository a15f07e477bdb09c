"""The candidate's module as the tests see it: values and exceptions that come from it, and functions that it may call back."""

from __future__ import annotations

import builtins
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NoReturn

from agentrl.sandboxes.inside.depth import LARGEST_DEPTH, deeper
from agentrl.sandboxes.inside.given import Given
from agentrl.sandboxes.inside.lent import MUTABLE, Borrowed, replace_content
from agentrl.sandboxes.inside.library_classes import library_exception, library_interface
from agentrl.sandboxes.inside.new_objects import Use, is_constant
from agentrl.sandboxes.inside.plain_data import NotPlainError, decode, encode
from agentrl.sandboxes.inside.probes import OWN_METHODS, Prober, is_named
from agentrl.sandboxes.inside.stand_ins import (
    COMPARISONS,
    Reference,
    RemoteClass,
    RemoteFunction,
    RemoteObject,
    class_body,
    reference,
    reference_of_class,
)
from agentrl.sandboxes.inside.wire import Wire

MOST_CALLBACKS = 100_000
DEEPEST_INHERITANCE = 30
NO_ARGUMENTS: dict[str, Any] = {}


class Remote:
    """The candidate's module, and every object that the tests have had of it."""

    def __init__(self, wire: Wire, kinds: dict[str, str], *, in_place: bool | None) -> None:
        self.kinds = kinds
        self.wire = wire
        self.prober = Prober(self)
        self.process = 0
        """The number of the candidate's process. Objects of an earlier one are gone."""
        self._in_place = in_place
        self._borrowed = Borrowed(self.encode)
        self._by_name: dict[str, Any] = {}
        self._objects: dict[int, Any] = {}
        self._named_tuples: dict[type, Callable[..., Any]] = {}
        self.untold = False
        """Whether the candidate has changed an argument in this test, of which the test was not told."""
        self._given = Given(self.encode)
        self._depth = 0
        self._callbacks = 0
        self._failed_inside: AssertionError | None = None
        self._called = False
        """Whether what is decoded is what a call gave."""

    def stand_in(self, name: str) -> Any:
        """What the tests get for a name of the candidate's module."""
        if name in self._by_name:
            return self._by_name[name]
        kind = self.kinds[name]
        if kind == "callable":
            self._by_name[name] = RemoteFunction(self, None, name)
            return self._by_name[name]
        value = self.attribute(None, name)
        if kind == "class" and isinstance(value, RemoteClass):
            where = reference_of_class(value)
            where.named = True
            where.path = name
            self._by_name[name] = value
        return value

    def begin(self, name: str) -> None:
        """A test begins, with a new process if the last one is gone."""
        if self.wire.gone:
            self.process += 1
            self._objects.clear()
            self._borrowed.clear()
        self._depth = 0
        self._failed_inside = None
        self.untold = False
        self.wire.begin(name)

    # -- what stand-ins ask --------------------------------------------------------------------------------------

    def attribute(self, owner: Any, name: str) -> Any:
        value = self._given_value(self.ask(op="get", of=self._owner(owner), name=name))
        if isinstance(value, RemoteObject) and (owner is None or isinstance(owner, RemoteClass)):
            self.prober.new_objects.note_constant(value, name)
        if isinstance(owner, RemoteObject) and not is_constant(value):
            reference(owner).used = True  # what is done to its value may change it
        return value

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        self.prober.changes += 1
        self.prober.new_objects.note_use(owner, Use("set", name, (value,), {}))
        self.ask(op="set", of=self._owner(owner), name=name, value=self._argument(value))

    def delete_attribute(self, owner: Any, name: str) -> None:
        self.prober.changes += 1
        self.ask(op="del", of=self._owner(owner), name=name)

    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        request = {
            "op": "special",
            "of": self._owner(owner),
            "name": name,
            "args": [self.encode(item) if name in COMPARISONS else self._argument(item) for item in args],
        }
        return self._given_value(self.ask(**request))

    def is_there(self, owner: Any) -> bool:
        """Whether the process that an object is in has not ended."""
        return reference(owner).process == self.process

    def compare(self, owner: Any, name: str, other: Any) -> Any:
        return self.prober.compare(owner, name, other)

    def combine(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        return self.prober.combine(owner, name, args)

    def truth(self, owner: Any) -> bool:
        return self.prober.truth(owner)

    def copy(self, owner: Any, *, deep: bool) -> Any:
        return self.value(self.ask(op="copy", of=self._owner(owner), deep=deep).get("ok"))

    def refuse(self, need: str) -> NoReturn:
        self.wire.ungradable(need)

    def call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the module, a method of an object, or with no name the object itself."""
        if isinstance(owner, RemoteObject) and name in OWN_METHODS and not is_named(type(owner)):
            self.wire.wrong(
                f"the candidate gave an object of class {type(owner).__name__} where plain data is asked for its {name}"
            )
        encoded = [self._argument(item) for item in args]
        named = {key: self._argument(item) for key, item in kwargs.items()}
        target = {"op": "call", "path": name} if owner is None else {"op": "method", "of": self._owner(owner)}
        request = {**target, "name": name, "args": encoded, "kwargs": named, "in_place": self._in_place}
        self.prober.changes += 1
        if name is not None:
            self.prober.new_objects.note_use(owner, Use("call", name, args, kwargs))
        answer = self.ask(**request)
        # Whether changes are told is the test's to say, and not the answer's.
        told = answer.get("ok") is None if self._in_place is None else self._in_place
        changed = answer.get("changed")
        self.untold = self.untold or (bool(changed) and not told)
        arguments = {**{str(index): item for index, item in enumerate(args)}, **kwargs}
        if told and isinstance(changed, dict):
            for key, data in changed.items():
                if key in arguments:
                    replace_content(arguments[key], self.value(data))
                    self._borrowed.told(arguments[key])
        known = len(self._objects)
        self._called = True
        try:
            value = self._given_value(answer, arguments if self._in_place else {})
        finally:
            self._called = False
        if isinstance(owner, RemoteClass) and name is None and not isinstance(value, owner):
            self.wire.wrong(f"the candidate's class {owner.__name__} makes objects of another class")
        if isinstance(value, RemoteObject) and len(self._objects) > known and not reference(value).reached:
            self.prober.new_objects.note_made(value, owner, name, args, kwargs)
        return value

    # -- the wire ------------------------------------------------------------------------------------------------

    def ask(self, **request: Any) -> dict[str, Any]:
        if self._depth >= LARGEST_DEPTH:
            self.wire.wrong(f"the candidate and the test's functions call each other more than {LARGEST_DEPTH} deep")
        self._depth += 1
        try:
            with deeper():
                answer = self.wire.ask(request | self._borrowed.changes())
                while "callback" in answer:
                    self._show(answer)
                    answer = self.wire.ask(self._call_back(answer) | self._borrowed.changes())
        finally:
            self._depth -= 1
        self._show(answer)
        if self._failed_inside is not None and self._depth == 0:
            failed, self._failed_inside = self._failed_inside, None
            raise failed
        if "needs" in answer:
            self._needed(answer["needs"])
        if "fault" in answer:
            self.wire.wrong(str(answer["fault"])[:1000])
        if "raised" in answer:
            raise self._raised(answer["raised"], request)
        return answer

    def _show(self, answer: dict[str, Any]) -> None:
        if isinstance(printed := answer.get("printed"), str):
            sys.stdout.write(printed)
        if isinstance(complained := answer.get("complained"), str):
            sys.stderr.write(complained)

    def _needed(self, claim: Any) -> NoReturn:
        """End the test for what the candidate says that it uses and is not there. It is believed where the test has given it an object
        that has this: else a program that fails would rather say that it cannot be judged."""
        match claim:
            case [int(number), str(name)] if self._given.has(number, name):
                kind = type(self._given[number]).__name__
                self.wire.ungradable(f"an object of its own class where the candidate uses its {kind}.{name[:100]}")
        self.wire.wrong("the candidate says that it needs what the test has not given it")

    def _call_back(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._callbacks += 1
        if self._callbacks > MOST_CALLBACKS:
            self.wire.wrong(f"the candidate calls the test's functions more than {MOST_CALLBACKS} times")
        try:
            function = self._given[int(answer["callback"])]
            args = [self.value(item) for item in answer["args"]]
            kwargs = {str(name): self.value(item) for name, item in dict(answer["kwargs"]).items()}
        except (TypeError, ValueError, KeyError, IndexError):
            self.wire.wrong("the candidate calls nothing that the test has given it")
        try:
            if hasattr(type(function), "__next__") and not callable(function):
                result = next(function)
            elif callable(function):
                result = function(*args, **kwargs)
            else:
                self.wire.wrong("the candidate calls an object of the test's that is no function")
            return {"op": "resume", "ok": self._argument(result)}
        except Exception as error:
            if isinstance(error, AssertionError):
                self._failed_inside = error
            return {"op": "resume", "raised": self.encode(error)}

    # -- values --------------------------------------------------------------------------------------------------

    def value(self, data: Any) -> Any:
        """A value that the candidate has sent."""
        try:
            return decode(data, self._dereference)
        except NotPlainError as error:
            self.wire.wrong(f"the candidate's answer is nonsense: {error}")

    def _given_value(self, answer: dict[str, Any], arguments: dict[str, Any] = NO_ARGUMENTS) -> Any:
        """What an answer gives. A container is the candidate's own, as far as the test changes it; or the one of `arguments` that
        it says it is."""
        same = arguments.get(str(answer.get("same")))
        value = same if type(same) in MUTABLE else self.value(answer.get("ok"))
        return self._borrowed.note(answer["lent"], value) if "lent" in answer else value

    def encode(self, value: Any) -> Any:
        """A value of the test's, to send."""
        return self._encode(value, self._refer)

    def _encode(self, value: Any, refer: Callable[[Any], Any]) -> Any:
        try:
            return encode(value, refer)
        except RecursionError:
            self.wire.ungradable("an argument that has no end")
        except NotPlainError as error:
            self.wire.ungradable(f"an argument that cannot pass: {error}")

    def _argument(self, value: Any) -> Any:
        """A value of the test's, to send where it may be one that the candidate has lent: then that one."""
        number = self._borrowed.number(value)
        return self._encode(value, self._refer_used) if number is None else {"lent": number}

    def _owner(self, owner: Any) -> Any:
        return None if owner is None else self._refer(owner)

    def _number(self, where: Reference) -> int:
        if where.number is None or where.process != self.process:
            self.wire.wrong("an object of a process of the candidate's that has ended")
        return where.number

    def _refer_used(self, value: Any) -> Any:
        if issubclass(type(value), RemoteObject):
            reference(value).used = True  # whoever gets it may change it
        return self._refer(value)

    def _refer(self, value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, RemoteObject):
            return {"ref": self._number(reference(value))}
        if issubclass(kind, RemoteClass):
            where = reference_of_class(value)
            return {"named": where.path} if where.path is not None else {"ref": self._number(where)}
        if kind is RemoteFunction:
            owner, name = value._agentrl_owner, value._agentrl_name
            return {"named": name} if owner is None else {"method": [self._number(_where(owner)), name]}
        name = str(getattr(value, "__name__", ""))
        if value is not None and getattr(builtins, name, None) is value:
            return {"builtin": name}
        if isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
            return self.encode(list(value))
        return self._given.describe(value)

    def _dereference(self, data: Any) -> Any:
        ((kind, content),) = data.items()
        if kind == "ref":
            number, class_data, plain = content
            stand_in = self._class(class_data, 0)
            if plain is not None and not is_named(stand_in):
                return self._with_fields(decode(plain, self._dereference), stand_in)
            return self._object(int(number), stand_in)
        if kind in ("class", "builtin"):
            return self._class(data, 0)
        if kind == "method":
            owner, name = content
            return RemoteFunction(self, self._dereference(owner), str(name))
        if kind == "own":
            return self._given[int(content)]
        if kind == "error":
            return self._error(content)
        raise NotPlainError(f"nothing is called {kind}")

    def _with_fields(self, value: Any, kind: Any) -> Any:
        """A tuple of a candidate's named tuple, as one of the tests' own; any other value as it is."""
        fields = reference_of_class(kind).fields if isinstance(kind, RemoteClass) else ()
        if not fields or type(value) is not tuple or len(value) != len(fields):
            return value
        known = self._named_tuples.get(kind)
        if known is None:
            known = self._named_tuples[kind] = namedtuple(kind.__name__, fields)
        return known(*value)

    def _object(self, number: int, kind: Any) -> Any:
        if number not in self._objects:
            if not (isinstance(kind, RemoteClass) and issubclass(kind, RemoteObject)):
                kind = self._make_class({"name": str(kind.__name__), "special": [], "bases": []}, None, 0)
            made = BaseException.__new__(kind) if issubclass(kind, BaseException) else object.__new__(kind)
            object.__setattr__(made, "_agentrl", Reference(self, number, self.process))
            self._objects[number] = made
        found = self._objects[number]
        if not self._called:
            reference(found).reached = True
        return found

    def _class(self, data: Any, depth: int) -> Any:
        ((kind, content),) = data.items()
        if depth > DEEPEST_INHERITANCE:
            raise NotPlainError("a class of endless bases")
        if kind == "builtin":
            found = getattr(builtins, content)
            if not isinstance(found, type):
                raise NotPlainError(f"{content} is no class")
            return found
        number = int(content)
        if number not in self._objects:
            info = self.ask(op="class", of=number)["class"]
            path = info["path"]
            known = self._by_name.get(path) if path is not None else None
            self._objects[number] = known or library_exception(info) or self._make_class(info, number, depth)
        return self._objects[number]

    def _make_class(self, info: Any, number: int | None, depth: int) -> RemoteClass:
        where = Reference(self, number, self.process, None if info.get("path") is None else str(info["path"]))
        bases = [base for base in (self._class(base, depth + 1) for base in info["bases"]) if _fits(base)]
        if not any(issubclass(base, RemoteObject) for base in bases):
            bases.insert(0, RemoteObject)
        where.fields = tuple(map(str, info.get("fields", ())))
        body = class_body(where, [str(name) for name in info["special"]], unhashable=bool(info.get("unhashable")))
        if info["name"] == "generator" and info.get("module") == "builtins":
            body["__class__"] = property(lambda _: types.GeneratorType)
        made = RemoteClass(str(info["name"]), tuple(bases), body)
        if (interface := library_interface(info)) is not None:
            interface.register(made)
        return made

    # -- exceptions ----------------------------------------------------------------------------------------------

    def _error(self, content: Any) -> BaseException:
        """An exception of the candidate's, the same object each time."""
        number = int(content["ref"])
        if number in self._objects:
            return self._objects[number]  # type: ignore[no-any-return]
        kind = self._class(content["class"], 0)
        if not (isinstance(kind, type) and issubclass(kind, Exception | SystemExit)):
            kind = Exception
        args = [self.value(item) for item in content["args"]]
        if issubclass(kind, RemoteObject):
            made: BaseException = self._object(number, kind)
            made.args = tuple(args)
        else:
            made = kind.__new__(kind, *args)
            try:
                made.__init__(*args)  # type: ignore[misc]
            except Exception:
                made = Exception.__new__(kind)
                made.args = tuple(args)
            self._objects[number] = made
            for name, value in dict(content["attributes"]).items():
                if not name.startswith("__") or name == "__notes__":
                    setattr(made, str(name), self.value(value))
        if content["cause"] is not None:
            made.__cause__ = self.value(content["cause"])
        return made

    def _raised(self, raised: Any, request: dict[str, Any]) -> BaseException:
        """What to raise here. StopIteration counts from an iterator alone: out of a function that a test maps over its cases, it
        would end them early."""
        try:
            error = self.value(raised["error"])
        except (TypeError, KeyError):
            self.wire.wrong("the candidate raises nonsense")
        if not isinstance(error, BaseException):
            self.wire.wrong("the candidate raises what is no exception")
        iterates = request["op"] in ("special", "method") and request["name"] in ("__next__", "send")
        if isinstance(error, StopIteration | StopAsyncIteration) and not iterates:
            return RuntimeError(f"the candidate raised {type(error).__name__}")
        return error


def _where(stand_in: Any) -> Reference:
    return reference_of_class(stand_in) if isinstance(stand_in, RemoteClass) else reference(stand_in)


def _fits(base: type) -> bool:
    return isinstance(base, RemoteClass) or (issubclass(base, Exception) and base is not Exception) or base is Exception
