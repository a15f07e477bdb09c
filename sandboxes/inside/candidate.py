"""The process that holds a candidate's code and calls it: one JSON line in, one out.

It is on the candidate's side of the fence. The candidate may change anything here, and gains nothing: it can only answer, and
what the answers should be is not in this process. An object of the candidate's is known by number; `of` is such a number, or
null for the candidate's module.

    {"op": "load", "source": "...", "module": "solution"}       -> {"names": {"add": "callable", "Stack": "class", ...}}
    {"op": "call", "path": "add", "args": [1, 2], "kwargs": {}, "in_place": false}   -> {"ok": 3}
    {"op": "method", "of": 4, "name": "push", "args": [{"mirror": [-1, [1]]}], ...}    -> {"ok": null, "changed": [[-1, []]]}
    {"op": "special", "of": 4, "name": "__add__", "args": [1], ...}   -> {"ok": ...}, as `type(x).__add__(x, 1)` gives it
    {"op": "get" | "set" | "del", "of": 4, "name": "size", ...}  -> {"ok": 1}; to set takes its value as "args"
    {"op": "copy", "of": 4, "deep": true}                        -> {"ok": ...}
    {"op": "number", "of": 4, "name": "push"}                    -> {"ok": 6}, by which that method is known from here on
    {"op": "class", "of": 5}                                     -> {"ok": null, "class": {"name": ..., "special": [...]}}

A list or the like has a number on both sides, see `mirror`: an argument is {"mirror": [-1, [1]]}, what is given {"ok": [1], "mirrored": 7}, and
what is in those {"item": [-1, 0, [1]]}; what is given again as it was, {"known": 7}. "in_place" says whether the tests are told what becomes of
those: null where they are told of arguments if a call gives no value. {"spoilt": true} is all that is said of a change that they are not
told of.

An exception is {"raised": {"classes": ["ValueError", ...], "text": "...", "error": ...}}; an answer that cannot be told, {"fault":
"..."}. Where the candidate calls a function of the tests, the answer is {"callback": number, "args": ..., "kwargs": ...} instead:
requests may follow (with "what" and "name" it uses an attribute or operator of an object of theirs), and {"op": "resume", "ok": ...} ends the call. What was written to stdout and stderr comes as "printed" and
"complained", see `told`. "state" in a request is what the tests have set, see `shared_state`. {"needs": [3, "price"]} says that the candidate uses an attribute of the tests' object 3, which is not here.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from json import dumps, loads  # what a test patches in the module is then not ours
from threading import Condition, RLock
from typing import Any

from agentrl.sandboxes.inside.candidate_objects import (
    Objects,
    TooManyObjectsError,
    describe_class,
    kind_of,
)
from agentrl.sandboxes.inside.changes import BothChangedError
from agentrl.sandboxes.inside.depth import deeper
from agentrl.sandboxes.inside.dotted_path import follow
from agentrl.sandboxes.inside.mirrors_of_candidate import MirrorsOfCandidate
from agentrl.sandboxes.inside.plain_data import NotPlainError, is_changeable
from agentrl.sandboxes.inside.shared_state import CandidatesState
from agentrl.sandboxes.inside.signals import handlers_later
from agentrl.sandboxes.inside.special_methods import PASSIVE, WITH, is_told
from agentrl.sandboxes.inside.tests_objects import NeedsTestObjectError
from agentrl.sandboxes.inside.told import Told

VALUE = object()
"""Stands for data, which the tests look up whenever they read its name."""


class CannotTellError(BaseException):
    """The candidate's answer has no form in which it could pass."""


OURS = (CannotTellError, BothChangedError, TooManyObjectsError, NeedsTestObjectError)
"""All else a candidate has raised."""


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Tell something of the candidate's.

    Raises:
        CannotTellError: It is in force. No code of the candidate's can catch it as it would what it has raised itself.
    """
    try:
        yield
    except (NotPlainError, RecursionError) as error:
        raise CannotTellError(f"{what} that cannot pass: {error}") from None


class Candidate:
    """The candidate's program, loaded, and what the tests may ask of it."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self.module = types.ModuleType("solution")
        self._loaded: dict[str, Any] = {}
        """The functions and classes that the program has defined as it was loaded: a test that holds one means that."""
        self._known: dict[str, Any] = {}
        """The names of the module as the tests know them, each with its function or class, or with `VALUE`."""
        self.objects = Objects(
            self.call_back, named=self._named, mirrored=self._mirrored, part=lambda *of: self._mirrors.part(*of)
        )
        self._mirrors = MirrorsOfCandidate(self.objects.encode)
        self._in_place: bool | None = None
        """Whether the tests are told what becomes of what both sides have; None where they are if a call gives no value."""
        self._requests = requests
        self._answers = answers
        self._exchange = Condition(RLock())
        """Held by the thread that asks the tests, and that no other speaks to them meanwhile; they listen to no thread while they `ask` nothing."""
        self._asked = 0
        """How many requests of the tests' are being answered."""
        self._told = Told(self.objects.encode, self.objects.encode_error)
        self._state = CandidatesState(self.objects.decode)

    def serve(self) -> None:
        """Answer requests until there are no more."""
        while line := self._requests.readline():
            with self._exchange:
                self._asked += 1
                self._exchange.notify_all()
            answer = self.answer(loads(line))
            with self._exchange:
                self._asked -= 1
                self._send(answer)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request, of whatever kind."""
        operations = {
            "load": self.load,
            "call": self.call,
            "method": self.method,
            "special": self.special,
            "get": self.get,
            "set": self.set,
            "del": self.delete,
            "copy": self.copy,
            "class": self.describe,
            "number": self.number,
        }
        try:
            self._in_place = request.get("in_place")
            self._state.set(request.get("state", {}))
            self._mirrors.take_back(request, self.objects.dereference)
            try:
                return operations[request["op"]](request)
            finally:
                self.objects.give_back_changes()
        except (CannotTellError, BothChangedError, TooManyObjectsError, NotPlainError) as error:
            return {"fault": str(error)}
        except NeedsTestObjectError as error:
            return {"needs": [error.number, error.name]}
        except BaseException as error:
            return self._raised(error)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the program, and return what it defines."""
        self.module = types.ModuleType(request["module"])
        self.module.__file__ = f"{request['module']}.py"
        sys.path.insert(0, os.getcwd())  # what lies beside the program it may import, as `python solution.py` does
        sys.modules[request["module"]] = self.module
        if request["tells"]:
            self._told.listen(request["source"])
        exec(compile(request["source"], self.module.__file__, "exec", dont_inherit=True), self.module.__dict__)
        names = self._renamed()
        self._loaded = {name: value for name, value in self._known.items() if value is not VALUE}
        return {"names": names, "doc": self.module.__doc__ if type(self.module.__doc__) is str else None}

    def _renamed(self) -> dict[str, str | None]:
        """Return the kinds of the names that the program has made, or given to another function or class, since the tests were told.

        None where it has deleted one.
        """
        now = {name: VALUE if kind_of(value) == "value" else value for name, value in [*vars(self.module).items()]}
        renamed: dict[str, str | None] = dict.fromkeys(self._known.keys() - now.keys())
        for name, value in now.items():
            if name not in self._known or self._known[name] is not value:
                renamed[name] = kind_of(value)
        self._known = now
        return {name: kind for name, kind in renamed.items() if is_told(name)}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call by dotted path."""
        return self.invoke(follow(request["path"], self._named), request)

    def method(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a method."""
        owner = self._owner(request)
        return self.invoke(owner if request["name"] is None else getattr(owner, request["name"]), request)

    def special(self, request: dict[str, Any]) -> dict[str, Any]:
        """Use an operator."""
        owner = self._owner(request)
        method = getattr(type(owner), request["name"])
        if request["name"] not in PASSIVE:
            return self.invoke(lambda *args: method(owner, *args), request, always=request["name"] in WITH)
        return {"ok": self._encode(method(owner, *[self.objects.decode(item) for item in request["args"]]))}

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return an attribute of an object, or a name of the module."""
        holder = [getattr(self._owner(request), request["name"])]
        answer: dict[str, Any] = {}
        self._tell_changes(answer, told=False)
        return {**answer, **self._giving(holder)}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set an attribute, or a name of the module."""
        owner, name = self._owner(request), request["name"]
        in_class = self.objects.in_class if isinstance(owner, type) else lambda value: value
        answer = self.invoke(lambda value: setattr(owner, name, in_class(value)), request)
        if owner is self.module:
            self._renamed()  # which the tests know
        return answer

    def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete an attribute, or a name of the module."""
        owner, name = self._owner(request), request["name"]
        delattr(owner, name)
        if owner is self.module:
            self._renamed()
        answer: dict[str, Any] = {"ok": None}
        self._tell_changes(answer, told=True)
        return answer

    def _named(self, name: str) -> Any:
        """Return what a name stood for before anybody gave it to something else: a test that holds that means it."""
        return self._loaded[name] if name in self._loaded else getattr(self.module, name)

    def number(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the number of an attribute's value."""
        return {"ok": self.objects.number(getattr(self._owner(request), request["name"]))}

    def copy(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of an object."""
        import copy

        owner = self._owner(request)
        return {"ok": self._encode(copy.deepcopy(owner) if request["deep"] else copy.copy(owner))}

    def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what the tests are told of a class."""
        kind: type = self.objects[request["of"]]
        name = kind.__name__
        path = name if self._loaded.get(name) is kind else None
        return {"ok": None, "class": describe_class(kind, self.objects, path)}

    def invoke(self, function: Any, request: dict[str, Any], *, always: bool = False) -> dict[str, Any]:
        """Call, and tell what has become of what both sides have where the call gives no value, or `always`."""
        sent = {**dict(enumerate(request["args"])), **request.get("kwargs", {})}
        args = [self.objects.decode(item) for item in request["args"]]
        kwargs = {name: self.objects.decode(item) for name, item in request.get("kwargs", {}).items()}
        numbers = [number for data in sent.values() if (number := number_of(data)) is not None]
        begun = [data["mirror"][0] for data in sent.values() if type(data) is dict and "mirror" in data]
        results: list[Any] = []
        answer: dict[str, Any] = {}
        try:
            results.append(function(*args, **kwargs))
        except OURS:
            raise
        except BaseException as error:
            answer = self._raised(error)
        # What is held now, the candidate holds: but for the traceback of what was raised.
        args.clear()
        kwargs.clear()
        # Where no value was given that the tests could look at, they look at the arguments.
        unseen = self._tell_changes(answer, numbers, told=always or not results or results[0] is None)
        if results:
            answer.update(self._giving(results))
            results.clear()
        # Of an argument that has changed unseen, the test's own has another content, and cannot be the same from here on.
        parted = begun if "raised" in answer else unseen.intersection(begun)
        self._mirrors.forget(parted)
        return {**answer, "dropped": [*answer.get("dropped", ()), *parted, *self._mirrors.unheld()]}

    def _tell_changes(self, answer: dict[str, Any], numbers: Collection[int] = (), *, told: bool) -> frozenset[int]:
        """Add to an answer what has become of what both sides have, of which a call was given `numbers`.

        Return the numbers of what the tests are not told: what the candidate has given changes only where they see everything.
        """
        if self._in_place is False or "fault" in answer:
            return frozenset()
        with telling("an argument"):
            changed = self._mirrors.changed(numbers if told else ())
        shown = {
            number: content
            for number, content in changed.items()
            if content is not None and (self._in_place or (told and (number < 0 or number in numbers)))
        }
        self._mirrors.tell(shown)
        if shown:
            answer["changed"] = [*shown.items()]
        if len(shown) < len(changed):
            answer["spoilt"] = True
        return frozenset(changed.keys() - shown.keys())

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], what: dict[str, str]) -> Any:
        """Call a function of the tests, or use an object of theirs, and serve what they ask before that returns."""
        with self._exchange, deeper():
            while not self._asked:  # a thread that the program has left running
                self._exchange.wait()
            given = [self._given_to_tests(item) for item in args]
            named = {name: self._given_to_tests(item) for name, item in kwargs.items()}
            self._send({"callback": number, "args": given, "kwargs": named, **what, **self._changes_so_far()})
            while (request := self._next_request())["op"] != "resume":
                self._send(self.answer(request))
            self._state.set(request.get("state", {}))
            self._mirrors.take_back(request, self.objects.dereference)
        with telling("what a test's function gives"):
            if "raised" not in request:
                return self.objects.decode(request["ok"])
            error: BaseException = self.objects.decode(request["raised"])
        raise error

    def _next_request(self) -> dict[str, Any]:
        """Return what the tests say while a function of theirs is called.

        A handler that raises, as an alarm of the program's, would leave the answer to be taken for the next request.
        """
        with handlers_later():
            request: dict[str, Any] = loads(self._requests.readline())
            return request

    def _given_to_tests(self, value: Any) -> Any:
        """Return what a function of the tests is called with."""
        if not is_changeable(value):
            return self._encode(value)
        if (known := self._mirrors.known_number(value)) is not None:
            return {"known": known}
        items = self._mirrors.items()
        with telling("an argument"):
            number = self._mirrors.mirror_for_call(value)
            return {"mirror": [number, self._mirrors.content(number, items)]}

    def _changes_so_far(self) -> dict[str, Any]:
        """Return what has become of what both sides have, as far as that is quickly seen: the tests' function may look at it."""
        if not self._in_place:
            return {"spoilt": True} if self._in_place is None and self._mirrors.may_have_changed() else {}
        changed = self._mirrors.changed(small=True)
        changed = {number: content for number, content in changed.items() if content is not None}
        self._mirrors.tell(changed)
        return {"changed": [*changed.items()]}

    def _giving(self, holder: list[Any]) -> dict[str, Any]:
        """Return an answer that gives the one value in a list."""
        if (known := self._mirrors.known_number(holder[0])) is not None:
            return {"ok": {"known": known}}
        if not is_changeable(holder[0]):
            return {"ok": self._encode(holder[0])}
        with telling("an answer"):
            # The tests' own has another content than this, of which they were not told: from here on, they have two.
            dropped = self._mirrors.part_from_tests(holder[0])
            items = self._mirrors.items()
            number = self._mirrors.mirror(holder)
            if number is None:
                return {"ok": self.objects.encode(holder[0], items)}
            answer = {"ok": self._mirrors.content(number, items), "mirrored": number, "dropped": dropped}
            if number > 0:  # which the tests have from here on, whatever they knew of it
                self._mirrors.tell([number])
            return answer

    def _mirrored(self, number: int, data: Any) -> Any:
        """Return what both sides have, by its number; or, with the data of what the tests send to be mirrored, from here on."""
        if data is None:
            return self._mirrors[number]
        value = self.objects.decode(data)
        self._mirrors.take(number, value)
        return value

    def _owner(self, request: dict[str, Any]) -> Any:
        return self.module if request["of"] is None else self.objects.decode(request["of"])

    def _encode(self, value: Any) -> Any:
        with telling("an answer"):
            return self.objects.encode(value)

    def _raised(self, error: BaseException) -> dict[str, Any]:
        import traceback

        try:
            traceback.print_exception(error, file=sys.__stderr__)
            classes = [kind.__name__ for kind in type(error).__mro__]
            told = {"classes": classes, "text": str(error)[:10_000], "error": self.objects.encode_error(error)}
        except BaseException:
            return {"fault": "an exception that cannot be told"}
        return {"raised": told}

    def _send(self, answer: dict[str, Any]) -> None:
        self._told.tell(answer)
        if "names" not in answer and (renamed := self._renamed()):
            answer["names"] = renamed
        self._answers.write(dumps(answer, separators=(",", ":")).encode() + b"\n")
        self._answers.flush()


def number_of(data: Any) -> int | None:
    """Return the number of an argument, as it was sent, that both sides have."""
    if type(data) is not dict:
        return None
    return data["mirrored"] if "mirrored" in data else data["mirror"][0] if "mirror" in data else None


def main() -> None:
    """Serve the tests, in the candidate's process."""
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what the candidate prints is for the tests that capture it, and nobody else
        Candidate(requests, answers).serve()
