"""The candidate's module as the tests see it: what they ask of it, and what it asks of them."""

from __future__ import annotations

import json
import re
from _thread import RLock
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import nullcontext
from types import FunctionType, MethodType
from typing import Any, NamedTuple, NoReturn

from agentrl.sandboxes.inside.aliases import EVERYWHERE, Aliases
from agentrl.sandboxes.inside.changes import snapshot
from agentrl.sandboxes.inside.depth import LARGEST_DEPTH, deeper
from agentrl.sandboxes.inside.operators import OWN_METHODS, Operators, is_named
from agentrl.sandboxes.inside.own_faults import OURS
from agentrl.sandboxes.inside.plain_data import PLAIN_BASES, NotPlainError
from agentrl.sandboxes.inside.questions import COLLECTIONS, SEARCHES, SET_METHODS, Change, Round
from agentrl.sandboxes.inside.remote_values import RemoteValues
from agentrl.sandboxes.inside.shared_state import TestsState
from agentrl.sandboxes.inside.special_methods import PASSIVE, WITH, goes_through_candidates, is_told
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
_ASSERTIONS = "any_call called called_once called_once_with called_with has_calls not_called"
_AWAITED = "any_await awaited awaited_once awaited_once_with awaited_with has_awaits not_awaited"
OF_MOCKS = frozenset(
    {
        *(f"assert_{name}" for name in f"{_ASSERTIONS} {_AWAITED}".split()),
        *[
            "called",
            "call_count",
            "call_args",
            "call_args_list",
            "method_calls",
            "mock_calls",
            "await_count",
            "await_args",
            "await_args_list",
        ],
    }
)
"""What `unittest.mock` answers of the calls that it has had."""
MOST_CALLBACKS = 100_000
PATCHED_INTO = re.compile(r"(?:patch|patch\.object|setattr)\(\s*['\"]?\w+\.(\w+)(?:\.\w|\s*,)")
"""A call that patches an attribute of a name of a module's."""
ONE_FOR_ALL = 3
"""A class that gives one object for so many different arguments gives it for all."""
MANY_LINKS = 2
"""Objects of such a class are a chain once one of them has been linked with itself so often."""
REACHES_BEHIND = re.compile(r"\{[^{}]*[.\[]_")
"""A field of a format, as in "{0.__class__}", with which `str.format` reads what the tests expect in their own process."""


class _Given(NamedTuple):
    """What the candidate has given."""

    value: Any
    is_new: bool
    """Whether the tests have had no such object before."""


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
        self._patched_into = {*PATCHED_INTO.findall(code)}
        """Names of the module of which the tests patch an attribute."""
        self.begun: list[str] = []
        """The tests that have begun."""
        self._made_for: dict[int, set[str]] = {}
        """With what a test has had an object from its class, where that is more than once."""
        self._linked: Counter[int] = Counter()
        """How often a test has had it hold itself."""
        self._in_place = in_place
        self._by_name: dict[str, Any] = {}
        self.live: set[str] = set()
        """Names of the module that somebody has set since it was loaded: what they are now, the program says."""
        self._deleted: dict[str, tuple[str, Any]] = {}
        """Names of the module that the tests have deleted, with what they were."""
        self._own: set[tuple[Any, str]] = set()
        """Of owners, the names that the tests have set to an object of their own, such as a mock."""
        self._in_place_of_own: list[Any] = []
        """What the candidate has put there."""
        self.untold = False
        """Whether the candidate has changed an argument in this test, of which the test was not told."""
        self.spoilt = False
        """Whether it has done so in any test, or has given back an argument where a test has got a copy of that."""
        self._values = RemoteValues(self, wire, modules, self._describe, self._by_name.get)
        self._state = TestsState(code, self._values.encode)
        self._depth = 0
        self._callbacks = 0
        self._may_hear = MOST_BYTES
        """Characters that the candidate may still print."""
        self._one_at_a_time = RLock()
        """Threads of the tests share one candidate. What a thread asks from within a callback is part of what it has asked."""
        self._failed_inside: AssertionError | None = None
        self._stops: list[BaseException] = []

    @property
    def test(self) -> str:
        """The test that runs."""
        return self.begun[-1] if self.begun else EVERYWHERE

    def stand_in(self, name: str) -> Any:
        """What the tests get for a name of the candidate's module."""
        if name in self.live:
            value = self.attribute(None, name)
            if isinstance(value, RemoteClass):
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
            self.wire.ungradable(
                f"to patch {name[:100]}, which is not the candidate's own class, in the candidate's process"
            )
        return value

    def name_classes(self, names: Collection[str]) -> None:
        """Have the classes that the tests name before anything else: a value is one of such a class wherever the test gets it from."""
        for name in names:
            if self.kinds.get(name) == "class":
                self.stand_in(name)

    def begin(self, name: str) -> None:
        """A test begins, with a new process if the last one is gone."""
        if self.wire.gone:
            self._values.begin_process()
            self._own.clear()
            self._deleted.clear()
            self.live.clear()
            self.kinds.clear()
            self.kinds.update(self._loaded_kinds)
            self._state.forget()
        self._depth = 0
        self._failed_inside = None
        self._made_for.clear()
        self._linked.clear()
        self._in_place_of_own.clear()
        self.untold = False
        self.begun.append(name)
        self.run.begin(name)
        self.wire.begin(name)

    # -- what stand-ins ask --------------------------------------------------------------------------------------

    def attribute(self, owner: Any, name: str) -> Any:
        answer = self.ask(self._note_seen, op="get", of=self._values.touched(owner), name=name)
        value = self._values.given_value(answer)
        if isinstance(value, RemoteClass) and isinstance(owner, RemoteClass) and is_named(owner):
            reference_of_class(value).named = True  # the test names `Grid.Cell` as it would `Cell`
        self.aliases.note(owner, name, value, self.test)
        self._check_answers_for_own(owner, name, value)
        if isinstance(value, RemoteObject) and isinstance(owner, RemoteObject) and name in OWN_METHODS:
            self._check_own_method(owner, name)
        return value

    def _check_answers_for_own(self, owner: Any, name: str, value: Any) -> None:
        """End the test where the candidate has put something of its own in the place of what the test has set, such as a mock, and that
        would answer for it: an object of a class that the test does not name, or anything that is asked what only a mock knows."""
        ours = isinstance(value, RemoteObject | RemoteClass | RemoteFunction)
        if ours and (id(owner), name) in self._own:
            self._in_place_of_own.append(value)
        unnamed = isinstance(value, RemoteObject) and not is_named(type(value)) and (id(owner), name) in self._own
        if unnamed or (name in OF_MOCKS and any(owner is one for one in self._in_place_of_own)):
            self.wire.wrong(
                f"the candidate has put an object of its own in the place of what the test has set as {name[:100]}"
            )

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, RemoteClass) and _is_descriptor(value):
            self.wire.ungradable(f"a {type(value).__name__} as the attribute {name[:100]} of the candidate's class")
        self.operators.changes += 1
        self._values.hold_methods(owner, name, lambda one: self._number_of(one, name))
        if isinstance(owner, RemoteObject):
            self.run.note_change(owner, Change("set", name, (value,), {}))
            if value is owner:
                self._linked[id(owner)] += 1
                self._check_linked(owner)
        self._use({"op": "set", "of": self._values.touched(owner), "name": name}, (value,))
        (self._own.add if _is_of_the_tests(value) else self._own.discard)((id(owner), name))

    def _number_of(self, owner: Any, name: str) -> int | None:
        """Return the number of an object's attribute; None where the candidate has none to give."""
        number = self.ask(op="number", of=self._values.owner(owner), name=name).get("ok")
        return number if type(number) is int else None

    def call_method(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what the tests have had by the name of a method, which is something else's by now."""
        with self._one_at_a_time:
            self.operators.changes += 1
            request = {"op": "method", "of": {"ref": self._values.number_of(method)}, "name": None}
            return self._use(request, args, kwargs).value

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
        self.operators.changes += 1
        self._use({"op": "del", "of": self._values.touched(owner), "name": name})
        self._own.discard((id(owner), name))

    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        request = {"op": "special", "name": name}
        if name in PASSIVE:
            of, operands = self._values.owner(owner), [self._values.encode(item) for item in args]
            return self._values.given_value(self.ask(**request, of=of, args=operands))
        request["of"] = self._values.touched(owner)
        return self._use(request, args, always=name in WITH).value

    def compare(self, owner: Any, name: str, other: Any) -> Any:
        return self.operators.compare(owner, name, other)

    def combine(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        return self.operators.combine(owner, name, args)

    def truth(self, owner: Any) -> bool:
        return self.operators.truth(owner)

    def copy(self, owner: Any, *, deep: bool) -> Any:
        return self._values.value(self.ask(op="copy", of=self._values.touched(owner), deep=deep).get("ok"))

    def refuse(self, need: str) -> NoReturn:
        self.wire.ungradable(need)

    def call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the module, a method of an object, or with no name the object itself."""
        if isinstance(owner, RemoteClass) and name is None:
            made = self.run.make(owner, args, kwargs, lambda args, kwargs: self.call_now(owner, None, args, kwargs))
            if isinstance(made, RemoteObject):
                self._note_made(made, args, kwargs)
            return made
        if not isinstance(owner, RemoteObject):
            return self.run.make(None, args, kwargs, lambda args, kwargs: self.call_now(owner, name, args, kwargs))
        if name in OWN_METHODS:
            self._check_own_method(owner, name)
        if name is not None and args and not kwargs and _is_question(name, args[0]):
            return self.run.put(owner, name, args, lambda one, args: self.call_now(one, name, args, {}))
        return self.call_now(owner, name, args, kwargs)

    def _note_made(self, made: RemoteObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a class has given an object."""
        where = reference(made)
        where.times_made += 1
        if where.times_made == 1:
            where.first_made_in = self.test
            return
        first = [where.made_by[1:]] if where.made_by is not None and where.first_made_in == self.test else []
        known = self._made_for.setdefault(id(made), set())
        known.update(json.dumps(self._values.encode([*map(list, of)])) for of in (*first, (args, kwargs)))
        given = [*args, *kwargs.values()]
        # A class that takes an object of its own alone may give that back, as `str` does.
        if len(given) > 1 and any(one is made for one in given):
            self._linked[id(made)] += MANY_LINKS
        self._check_linked(made)

    def _check_linked(self, made: RemoteObject) -> None:
        """End the test where the nodes that it links are one object: a class may give one for many arguments, as a singleton does, but
        nobody links that with itself."""
        if len(self._made_for.get(id(made), ())) >= ONE_FOR_ALL and self._linked[id(made)] >= MANY_LINKS:
            self.wire.wrong(
                f"the candidate's {type(made).__name__} gives one object for {ONE_FOR_ALL} different arguments"
            )

    def _check_own_method(self, owner: Any, name: str) -> None:
        if not is_named(type(owner)):
            self.wire.wrong(
                f"the candidate gave an object of class {type(owner).__name__} where plain data is asked for its {name}"
            )

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
        given = self._use({**target, "name": name}, args, kwargs)
        value = given.value
        if isinstance(owner, RemoteObject):
            reference(owner).called = True
        # What is given data and gives nothing back is there to change the object.
        data = (*args, *kwargs.values())
        gave_nothing = value is None and bool(data) and not any(map(callable, data))
        if isinstance(owner, RemoteObject) and name is not None and gave_nothing:
            self.run.note_change(owner, Change("call", name, remembered, remembered_named))
        if isinstance(owner, RemoteClass) and name is None and not _is_of(value, owner, args, kwargs):
            self.wire.wrong(f"the candidate's class {owner.__name__} makes objects of another class")
        if isinstance(value, RemoteObject) and given.is_new and not isinstance(owner, RemoteObject):
            reference(value).made_by = ((owner, name), remembered, remembered_named)
        return value

    # -- the wire ------------------------------------------------------------------------------------------------

    def _use(
        self,
        request: dict[str, Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] = NO_ARGUMENTS,
        *,
        always: bool = False,
    ) -> _Given:
        """Ask what may change its arguments."""
        numbers: set[int] = set()
        lends = self._in_place is not False
        request["args"] = [self._values.argument(item, numbers, lends=lends) for item in args]
        request["kwargs"] = {key: self._values.argument(item, numbers, lends=lends) for key, item in kwargs.items()}
        borrowed = self._values.borrowed
        borrowed.begin_call(numbers)
        try:
            answer = self.ask(lambda answer: self._note_changes(answer, numbers, always=always), **request)
            known = len(self._values)
            return _Given(self._values.given_value(answer), is_new=len(self._values) > known)
        finally:
            borrowed.end_call(numbers)

    def ask(self, note: Callable[[dict[str, Any]], None] | None = None, /, **request: Any) -> dict[str, Any]:
        """Ask the candidate. `note` looks at the answer, before what it has raised is raised here."""
        with self._one_at_a_time:
            return self._ask(request, note)

    def _ask(self, request: dict[str, Any], note: Callable[[dict[str, Any]], None] | None) -> dict[str, Any]:
        self.check_stops()
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
                    answer = self.wire.ask(self._call_back(answer) | self._changes())
        finally:
            self._depth -= 1
        self._hear(answer)
        self._note_names(answer)
        if self._failed_inside is not None and self._depth == 0:
            failed, self._failed_inside = self._failed_inside, None
            raise failed
        if "needs" in answer:
            self._needed(answer["needs"])
        if "fault" in answer:
            self.wire.wrong(str(answer["fault"])[:1000])
        if note is not None:
            note(answer)
        if "raised" in answer:
            raise self._raised(answer["raised"], request)
        return answer

    def _only_looks(self, request: dict[str, Any]) -> bool:
        """Whether a request is for nothing that decides a test: for a function or class by its name, or for what pytest asks of each."""
        if request["op"] != "get":
            return bool(request["op"] == "class")
        by_name = request["of"] is None and self.kinds.get(request["name"]) != "value"
        return by_name or request["name"].startswith("_")

    def _note_changes(self, answer: dict[str, Any], numbers: Collection[int] = (), *, always: bool = False) -> None:
        """Give what both sides have what the candidate has made of it. Unless the test says, it is looked at where a call with these
        `numbers` has given no value, or `always`: what the candidate says of changes never decides that."""
        told = self._in_place or (self._in_place is None and (always or answer.get("ok") is None))
        self.untold = self.untold or (not told and "spoilt" in answer)
        self.spoilt = self.spoilt or "spoilt" in answer
        try:
            for number, content in answer.get("changed", ()) if told else ():
                if self._in_place or number < 0 or number in numbers:
                    self._values.hear(number, content)
            self._values.borrowed.drop(answer.get("dropped", ()))
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

    def has_raised(self, error: BaseException) -> bool:
        """Whether an exception is one of the candidate's."""
        return self._values.has(error)

    def check_stops(self) -> None:
        """End the test where a StopIteration out of a function, and not of an iterator, was seen by none of the test's own code: where a
        test maps a function over its cases, it would end them early."""
        stops, self._stops = self._stops, []
        if not all(map(_seen_outside, stops)):
            self.wire.wrong("the candidate raised StopIteration where the test iterates, and not in an iterator")

    def _hear(self, answer: dict[str, Any]) -> None:
        try:
            self._may_hear = hear(answer, self._values.value, self._may_hear)
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            self.wire.wrong(f"the candidate tells nonsense beside its answer: {error}")

    def _describe(self, number: int) -> Any:
        return self.ask(op="class", of=number)["class"]

    def _changes(self) -> dict[str, Any]:
        """What a request tells beside what it asks: what the tests have changed since the last."""
        try:
            return self._values.borrowed.changes() | self._state.changes()
        except (NotPlainError, RecursionError) as error:
            self.wire.ungradable(f"an argument that cannot pass: {error}")

    def _needed(self, claim: Any) -> NoReturn:
        """End the test for what the candidate says that it uses and is not there. It is believed where the test has given it an object
        that has this: else a program that fails would rather say that it cannot be graded."""
        match claim:
            case [int(number), str(name)] if self._values.given.has(number, name):
                kind = type(self._values.given[number]).__name__
                self.wire.ungradable(f"an object of its own class where the candidate uses its {kind}.{name[:100]}")
        self.wire.wrong("the candidate says that it needs what the test has not given it")

    def _call_back(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._callbacks += 1
        if self._callbacks > MOST_CALLBACKS:
            self.wire.wrong(f"the candidate calls the test's functions more than {MOST_CALLBACKS} times")
        try:
            number = answer["callback"]
            function = self._values.given[number]
            args = [self._values.of_call_back(item) for item in answer["args"]]
            kwargs = {str(name): self._values.of_call_back(item) for name, item in dict(answer["kwargs"]).items()}
        except (TypeError, ValueError, KeyError, IndexError):
            self.wire.wrong("the candidate calls nothing that the test has given it")
        if any(isinstance(one, str) and REACHES_BEHIND.search(one) for one in (*args, *kwargs.values())):
            self.wire.wrong("the candidate gives the test's code a format that reaches behind a public name")
        self.wire.call_back()
        try:
            if "what" in answer:
                result = self._values.given.answer(number, str(answer["what"]), str(answer["name"]), args)
            elif hasattr(type(function), "__next__") and not callable(function):
                result = next(function)
            elif callable(function) and self._values.given.may_call(number, args, kwargs):
                result = function(*args, **kwargs)
            else:
                self.wire.wrong("the candidate calls an object of the test's that is no function")
            return {"op": "resume", "ok": self._values.argument(result)}
        except BaseException as error:
            if not goes_through_candidates(type(error)):
                raise
            if isinstance(error, AssertionError):
                self._failed_inside = error
                error = AssertionError()  # its text says what is expected
            return {"op": "resume", "raised": self._values.encode(error)}

    def _raised(self, raised: Any, request: dict[str, Any]) -> BaseException:
        """What to raise here."""
        error: Any
        try:
            error = self._values.value(raised["error"])
        except (TypeError, KeyError):
            self.wire.wrong("the candidate raises nonsense")
        if not isinstance(error, BaseException):
            self.wire.wrong("the candidate raises what is no exception")
        iterates = request["op"] in ("special", "method") and request["name"] in ("__next__", "send")
        if isinstance(error, StopIteration | StopAsyncIteration) and not iterates:
            self._stops.append(error)
        return error  # type: ignore[no-any-return]


def _is_of_the_tests(value: Any) -> bool:
    """Whether a value is an object of the tests' own, and no data."""
    return not (value is None or isinstance(value, (*PLAIN_BASES, RemoteObject, RemoteClass, RemoteFunction)))


def _is_descriptor(value: Any) -> bool:
    """Whether a class would have the value decide what its attribute is, such as a property: that cannot pass."""
    ours = isinstance(value, FunctionType | MethodType | RemoteFunction | RemoteObject | RemoteClass)
    return hasattr(type(value), "__get__") and not ours


def _is_of(value: Any, kind: RemoteClass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a class may have made a value of these arguments. What is plain data has no class of the candidate's, if that is none that
    the test names."""
    if kind in type(value).__mro__:
        return True
    if type(value) is dict and reference_of_class(kind).makes_dicts:  # so it says: a TypedDict does what `dict` does
        try:
            return bool(value == dict(*args, **kwargs))
        except (TypeError, ValueError):
            return False
    return not is_named(kind) and not isinstance(value, RemoteObject | RemoteClass | RemoteFunction)


def _is_question(name: str, argument: Any) -> bool:
    """Whether a method with this argument asks whether an object has what the test expects: `index`, `count`, `startswith`, `union` of a
    set."""
    return name in (*SEARCHES, *OWN_METHODS) or (name in SET_METHODS and isinstance(argument, COLLECTIONS))


def _seen_outside(error: BaseException) -> bool:
    """Whether an exception has reached code that is not ours."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            return True
        trace = trace.tb_next
    return False
