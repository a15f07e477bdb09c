"""The candidate's module as the tests see it: what they ask of it, and what it asks of them."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any, NoReturn

from agentrl.sandboxes.inside.aliases import EVERYWHERE, Aliases
from agentrl.sandboxes.inside.callbacks import Callbacks
from agentrl.sandboxes.inside.changes import snapshot
from agentrl.sandboxes.inside.depth import LARGEST_DEPTH, deeper
from agentrl.sandboxes.inside.given import is_descriptor
from agentrl.sandboxes.inside.impostors import Impostors, may_have_made
from agentrl.sandboxes.inside.names import names_patched_into
from agentrl.sandboxes.inside.operators import OWN_METHODS, Operators, is_named, is_question
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.questions import SEARCHES, Change, Round
from agentrl.sandboxes.inside.raised import Raised
from agentrl.sandboxes.inside.remote_values import RemoteValues
from agentrl.sandboxes.inside.shared_state import TestsState
from agentrl.sandboxes.inside.special_methods import PASSIVE, WITH, is_told
from agentrl.sandboxes.inside.stand_ins import (
    Method,
    RemoteClass,
    RemoteFunction,
    RemoteObject,
    reference,
    reference_of_class,
)
from agentrl.sandboxes.inside.told import MOST_BYTES, hear
from agentrl.sandboxes.inside.wire import Wire

NO_ARGUMENTS: dict[str, Any] = {}


class Remote:
    """The candidate's module, which the tests ask through stand-ins."""

    def __init__(
        self,
        wire: Wire,
        kinds: dict[str, str],
        code: str,
        modules: Collection[str],
        functions: Collection[str],
        run: Round,
        *,
        in_place: bool | None,
        doc: str | None,
    ) -> None:
        self.doc = doc
        """The module's docstring."""
        self.kinds = kinds
        """What each name of the module is: a class, a callable, or a value."""
        self._loaded_kinds = {**kinds}
        self._functions = {*functions}
        """What the tests want functions for: a class of such a name is none that they name."""
        self.wire = wire
        self.run = run
        self.operators = Operators(self, run)
        self.aliases = Aliases(code)
        self._patched_into = names_patched_into(code)
        """Names of the module of which the tests patch an attribute."""
        self.begun: list[str] = []
        """The tests that have begun."""
        self._in_place = in_place
        self._by_name: dict[str, Any] = {}
        self.live: set[str] = set()
        """Names of the module that somebody has set since it was loaded: what they are now, the program says."""
        self._deleted: dict[str, tuple[str, Any]] = {}
        """Names of the module that the tests have deleted, with what they were."""
        self.untold = False
        """Whether the candidate has changed an argument in this test, of which the test was not told."""
        self.spoilt = False
        """Whether it has done so in any test, or has given back an argument where a test has got a copy of that."""
        self._values = RemoteValues(
            self,
            wire,
            modules,
            lambda number: self.ask(op="class", of=number)["class"],
            self._by_name.get,
            lambda name, value: self._impostors.check_held(name, value),
        )
        self._state = TestsState(code, self._values.encode)
        self._impostors = Impostors(wire, self._values.encode, self._values.has)
        self._callbacks = Callbacks(wire, self._values)
        self._depth = 0
        self._may_hear = MOST_BYTES
        """Characters that the candidate may still print."""
        self._one_at_a_time = RLock()
        """Threads of the tests share one candidate. What a thread asks from within a callback is part of what it has asked."""
        self.raised = Raised(wire, self._values)

    @property
    def test(self) -> str:
        """The test that runs."""
        return self.begun[-1] if self.begun else EVERYWHERE

    def stand_in(self, name: str) -> Any:
        """Return what the tests get for a name of the candidate's module."""
        if name in self.live:
            value = self.attribute(None, name)
            if isinstance(value, RemoteClass) and not self._impostors.is_in_place(value):
                reference_of_class(value).named = name not in self._functions
            return value
        if name in self._by_name:
            return self._by_name[name]
        kind = self.kinds[name]
        if kind == "callable":
            self._by_name[name] = RemoteFunction(self, None, name)
            return self._by_name[name]
        value = self.attribute(None, name)
        if kind == "class" and isinstance(value, RemoteClass):
            where = reference_of_class(value)
            where.named = name not in self._functions
            where.path = name
            self._by_name[name] = value
        elif kind == "class" and name in self._patched_into:
            self.refuse(f"to patch {name[:100]}, which is not the candidate's own class, in the candidate's process")
        return value

    def name_classes(self, names: Collection[str]) -> None:
        """Have the classes that the tests name before anything else: a value is one of such a class wherever the test gets it from."""
        for name in names:
            if self.kinds.get(name) == "class":
                self.stand_in(name)

    def begin(self, name: str) -> None:
        """Begin a test, with a new process if the last one is gone."""
        if self.wire.gone:
            self._values.begin_process()
            self._impostors.begin_process()
            self._deleted.clear()
            self.live.clear()
            self.kinds.clear()
            self.kinds.update(self._loaded_kinds)
            self._state.forget()
        self._depth = 0
        self._callbacks.begin_test()
        self._impostors.begin_test()
        self.untold = False
        self.begun.append(name)
        self.run.begin(name)
        self.wire.begin(name)

    def attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of an object, or a name of the module."""
        answer = self.ask(self._note_seen, op="get", of=self._values.touched(owner), name=name)
        value = self._values.given_value(answer)
        if isinstance(value, RemoteClass) and isinstance(owner, RemoteClass) and is_named(owner):
            reference_of_class(value).named = True  # the test names `Grid.Cell` as it would `Cell`
        self.aliases.note(owner, name, value, self.test)
        self._impostors.check_attribute(owner, name, value)
        # A method of an object is asked as one; what else is called by its name is asked nothing.
        held = isinstance(value, RemoteObject) or isinstance(owner, RemoteClass | RemoteFunction)
        called = isinstance(value, RemoteObject | RemoteClass | RemoteFunction)
        if owner is not None and held and called and name in (*OWN_METHODS, *SEARCHES):
            self._impostors.check_own_method(owner, name)
        return value

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object, or a name of the module."""
        if isinstance(owner, RemoteClass) and is_descriptor(value):
            self.wire.ungradable(f"a {type(value).__name__} as the attribute {name[:100]} of the candidate's class")
        self.operators.changes += 1
        self._values.hold_methods(owner, name, lambda one: self._number_of(one, name))
        if isinstance(owner, RemoteObject):
            self.run.note_change(owner, Change("set", name, (value,), {}))
            if value is owner:
                self._impostors.note_linked(owner)
        self._use({"op": "set", "of": self._values.touched(owner), "name": name}, (value,))
        self._impostors.note_set(owner, name, value)

    def _number_of(self, owner: Any, name: str) -> int | None:
        """Return the number of an object's attribute; None where the candidate has none to give."""
        number = self.ask(op="number", of=self._values.owner(owner), name=name).get("ok")
        return number if type(number) is int else None

    def call_method(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what the tests have had by the name of a method, which is something else's by now."""
        with self._one_at_a_time:
            self.operators.changes += 1
            request = {"op": "method", "of": {"ref": self._values.number_of(method)}, "name": None}
            return self._use(request, args, kwargs)[0]

    def set_name(self, name: str, value: Any) -> None:
        """Set a name of the module."""
        self.set_attribute(None, name, value)
        kind, known = self._deleted.pop(name, (self.kinds.get(name, "value"), self._by_name.get(name)))
        self.kinds[name] = kind
        if known is not None and known is value:  # a patch is taken back
            self._by_name[name] = known
            self.live.discard(name)
        else:
            self.live.add(name)

    def delete_name(self, name: str) -> None:
        """Delete a name of the module."""
        self.delete_attribute(None, name)
        self.live.discard(name)
        if name in self.kinds:
            self._deleted[name] = self.kinds.pop(name), self._by_name.pop(name, None)

    def delete_attribute(self, owner: Any, name: str) -> None:
        """Delete an attribute of an object, or a name of the module."""
        self.operators.changes += 1
        self._use({"op": "del", "of": self._values.touched(owner), "name": name})
        self._impostors.note_deleted(owner, name)

    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of an object."""
        request = {"op": "special", "name": name}
        if name in PASSIVE:
            of, operands = self._values.owner(owner), [self._values.encode(item) for item in args]
            return self._values.given_value(self.ask(**request, of=of, args=operands))
        request["of"] = self._values.touched(owner)
        return self._use(request, args, always=name in WITH)[0]

    def compare(self, owner: Any, name: str, other: Any) -> Any:
        """Compare an object with something."""
        return self.operators.compare(owner, name, other)

    def combine(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of two operands or more."""
        return self.operators.combine(owner, name, args)

    def truth(self, owner: Any) -> bool:
        """Return whether an object is true."""
        return self.operators.truth(owner)

    def copy(self, owner: Any, *, deep: bool) -> Any:
        """Return a copy of an object."""
        return self._values.value(self.ask(op="copy", of=self._values.touched(owner), deep=deep).get("ok"))

    def refuse(self, need: str) -> NoReturn:
        """End the test, which cannot be graded, and say what it would need."""
        self.wire.ungradable(need)

    def call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the module, a method of an object, or with no name the object itself."""
        if isinstance(owner, RemoteClass) and name is None:
            made = self.run.make(owner, args, kwargs, lambda args, kwargs: self.call_now(owner, None, args, kwargs))
            if isinstance(made, RemoteObject):
                self._impostors.note_made(made, args, kwargs, self.test)
            return made
        if not isinstance(owner, RemoteObject):
            return self.run.make(None, args, kwargs, lambda args, kwargs: self.call_now(owner, name, args, kwargs))
        if name in OWN_METHODS:
            self._impostors.check_own_method(owner, name)
        if name is not None and args and not kwargs and is_question(name, args[0], named=is_named(type(owner))):
            return self.run.put(owner, name, args, lambda one, args: self.call_now(one, name, args, {}))
        return self.call_now(owner, name, args, kwargs)

    def call_now(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call at once. The run neither counts this call nor replaces what it makes."""
        with self._one_at_a_time:
            return self._call(owner, name, args, kwargs)

    def _call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            remembered, remembered_named = snapshot(args), snapshot(kwargs)
        except RecursionError:
            self.wire.ungradable("an argument that has no end")
        target = {"op": "call", "path": name} if owner is None else {"op": "method", "of": self._values.touched(owner)}
        self.operators.changes += 1
        value, is_new = self._use({**target, "name": name}, args, kwargs)
        if isinstance(owner, RemoteObject):
            reference(owner).called = True
        # What is given data and gives nothing back is there to change the object.
        data = (*args, *kwargs.values())
        gave_nothing = value is None and bool(data) and not any(map(callable, data))
        if isinstance(owner, RemoteObject) and name is not None and gave_nothing:
            self.run.note_change(owner, Change("call", name, remembered, remembered_named))
        if isinstance(owner, RemoteClass) and name is None and not may_have_made(owner, value, args, kwargs):
            self.wire.wrong(f"the candidate's class {owner.__name__} makes objects of another class")
        if isinstance(value, RemoteObject) and is_new and not isinstance(owner, RemoteObject):
            reference(value).made_by = ((owner, name), remembered, remembered_named)
        return value

    def _use(
        self,
        request: dict[str, Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] = NO_ARGUMENTS,
        *,
        always: bool = False,
    ) -> tuple[Any, bool]:
        """Ask what may change its arguments; return what that gives, and whether the tests have had no such object before."""
        numbers: set[int] = set()
        mirrored = self._in_place is not False
        request["args"] = [self._values.argument(item, numbers, mirrors=mirrored) for item in args]
        request["kwargs"] = {
            key: self._values.argument(item, numbers, mirrors=mirrored) for key, item in kwargs.items()
        }
        shared = self._values.mirrors
        shared.begin_call(numbers)
        try:
            answer = self.ask(lambda answer: self._note_changes(answer, numbers, always=always), **request)
            known = len(self._values)
            return self._values.given_value(answer), len(self._values) > known
        finally:
            shared.end_call(numbers)

    def ask(self, note: Callable[[dict[str, Any]], None] | None = None, /, **request: Any) -> dict[str, Any]:
        """Ask the candidate. `note` looks at the answer, before what it has raised is raised here."""
        with self._one_at_a_time:
            return self._ask(request, note)

    def _ask(self, request: dict[str, Any], note: Callable[[dict[str, Any]], None] | None) -> dict[str, Any]:
        self.raised.check_stops()
        if self._depth >= LARGEST_DEPTH:
            self.wire.wrong(f"the candidate and the test's functions call each other more than {LARGEST_DEPTH} deep")
        turn = nullcontext() if self._depth else self.wire.turn()
        self._depth += 1
        try:
            with deeper(), turn:
                request["in_place"] = self._in_place
                answer = self.wire.ask(request | self._changes(), looks=self._only_looks(request))
                while "callback" in answer:
                    self._hear(answer)
                    self._note_names(answer)
                    self._note_seen(answer)
                    answer = self.wire.ask(self._callbacks.answer(answer) | self._changes())
        finally:
            self._depth -= 1
        self._hear(answer)
        self._note_names(answer)
        if self._depth == 0:
            self._callbacks.raise_failure()
        if "needs" in answer:
            self._callbacks.end_for_need(answer["needs"])
        if "fault" in answer:
            self.wire.wrong(str(answer["fault"])[:1000])
        if note is not None:
            note(answer)
        if "raised" in answer:
            raise self.raised.error(answer["raised"], request)
        return answer

    def _only_looks(self, request: dict[str, Any]) -> bool:
        """Return whether a request is for nothing that decides a test: for a function or class by its name, or for what pytest asks of each."""
        if request["op"] != "get":
            return bool(request["op"] == "class")
        name = request["name"]
        return name.startswith("_") or (request["of"] is None and self.kinds.get(name) != "value")

    def _note_changes(self, answer: dict[str, Any], numbers: Collection[int] = (), *, always: bool = False) -> None:
        """Give what both sides have what the candidate has made of it.

        Unless the test says, it is looked at where a call with these `numbers` has given no value, or `always`: what the candidate says
        of changes never decides that.
        """
        told = self._in_place or (self._in_place is None and (always or answer.get("ok") is None))
        self.untold = self.untold or (not told and "spoilt" in answer)
        self.spoilt = self.spoilt or "spoilt" in answer
        try:
            for number, content in answer.get("changed", ()) if told else ():
                if self._in_place or number < 0 or number in numbers:
                    self._values.hear(number, content)
            self._values.mirrors.drop(answer.get("dropped", ()))
        except (NotPlainError, TypeError, ValueError, RecursionError) as error:
            self.wire.wrong(f"the candidate tells nonsense of its arguments: {error}")

    def _note_names(self, answer: dict[str, Any]) -> None:
        """Note the names of the module that the candidate has made, deleted, or given to another function or class."""
        try:
            renamed = dict(answer.get("names", ()))
        except (TypeError, ValueError):
            self.wire.wrong("the candidate tells nonsense of its names")
        for name, kind in renamed.items():
            if not isinstance(name, str) or not is_told(name):
                continue
            if kind is None:
                self.kinds.pop(name, None)
                self.live.discard(name)
            else:
                self.kinds[name] = str(kind)
                self.live.add(name)

    def _note_seen(self, answer: dict[str, Any]) -> None:
        """Give what both sides have what the candidate has made of it, in a run that sees everything."""
        self._note_changes({**answer, "ok": False})

    def _hear(self, answer: dict[str, Any]) -> None:
        try:
            self._may_hear = hear(answer, self._values.value, self._may_hear)
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            self.wire.wrong(f"the candidate tells nonsense beside its answer: {error}")

    def _changes(self) -> dict[str, Any]:
        """Return what a request tells beside what it asks: what the tests have changed since the last."""
        try:
            return self._values.mirrors.changes() | self._state.changes()
        except (NotPlainError, RecursionError) as error:
            self.wire.ungradable(f"an argument that cannot pass: {error}")
