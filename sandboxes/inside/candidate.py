"""The process that holds a candidate's code and calls it: one JSON line in, one out.

It is on the candidate's side of the fence. The candidate may change anything here, and gains nothing: it can only answer, and
what the answers should be is not in this process. An object of the candidate's is known by number; `of` is such a number, or
null for the candidate's module.

    {"op": "load", "source": "...", "module": "solution"}       -> {"names": {"add": "callable", "Stack": "class", ...}}
    {"op": "call", "path": "add", "args": [1, 2], "kwargs": {}, "in_place": false}   -> {"ok": 3}
    {"op": "method", "of": 4, "name": "push", "args": [[1]], ..., "in_place": true}  -> {"ok": null, "changed": {"0": []}}
    {"op": "special", "of": 4, "name": "__add__", "args": [1], ...}   -> {"ok": ...}, as `type(x).__add__(x, 1)` gives it
    {"op": "get" | "set" | "del", "of": 4, "name": "size", ...}  -> {"ok": 1}
    {"op": "copy", "of": 4, "deep": true}                        -> {"ok": ...}
    {"op": "class", "of": 5}                                     -> {"ok": null, "class": {"name": ..., "special": [...]}}

"in_place" says whether the tests are told what becomes of their arguments: null where they are if a call gives no value. {"spoilt":
true} is all that is said of a change that they are not told of. What the candidate keeps of its arguments is {"kept": {"0": 8}}, and
what has become of that since, {"kept_changed": [[8, [1, 2]]]}. {"same": "0"} says that a call has given back an argument.

A list or the like is {"ok": [1], "lent": 7}: what the tests change in it comes with a later request, see `lent`, as it does of an
argument that is {"kept": {"0": 8}}.

An exception is {"raised": {"classes": ["ValueError", ...], "text": "...", "error": ...}}; an answer that cannot be told, {"fault":
"..."}. Where the candidate calls a function of the tests, the answer is {"callback": number, "args": ..., "kwargs": ...} instead:
requests may follow (with "what" and "name" it uses an attribute or operator of an object of theirs), and {"op": "resume", "ok": ...} ends the call. What was written to stdout and stderr comes as "printed" and
"complained", see `told`. "state" in a request is what the tests have set, see `shared_state`. {"needs": [3, "price"]} says that the candidate uses an attribute of the tests' object 3, which is not here.
"""

from __future__ import annotations

import os
import sys
import types
from _thread import RLock
from json import dumps, loads  # what a test patches in the module is then not ours
from typing import Any

from agentrl.sandboxes.inside.candidate_objects import (
    Objects,
    TooManyObjectsError,
    describe_class,
)
from agentrl.sandboxes.inside.depth import deeper
from agentrl.sandboxes.inside.lent import (
    MUTABLE,
    BothChangedError,
    Lender,
    is_held_after_call,
    replace_content,
)
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.shared_state import CandidatesState
from agentrl.sandboxes.inside.special_methods import PASSIVE, WITH
from agentrl.sandboxes.inside.tests_objects import NeedsTestObjectError
from agentrl.sandboxes.inside.told import Told


class CannotTellError(BaseException):
    """The candidate's answer has no form in which it could pass."""


OURS = (CannotTellError, BothChangedError, TooManyObjectsError, NeedsTestObjectError)
"""All else a candidate has raised."""


class Candidate:
    def __init__(self, requests: Any, answers: Any) -> None:
        self.module = types.ModuleType("solution")
        self.originals: dict[tuple[int, str], Any] = {}
        """What the tests have set anew, of the module and of classes, which are kept."""
        self._lender = Lender()
        self._sees_all = False
        """Whether the tests see every change of what they have given."""
        self.objects = Objects(self.call_back, named=self._named, lent=self._lender.__getitem__)
        self._requests = requests
        self._answers = answers
        self._calling_back = RLock()
        self._told = Told(self.objects.encode_error)
        self._state = CandidatesState(self.objects.decode)

    def serve(self) -> None:
        for line in self._requests:
            self._send(self.answer(loads(line)))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
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
        }
        try:
            self._sees_all = bool(request.get("in_place"))
            self._state.set(request.get("state", {}))
            self._lender.take_back(request, self.objects.decode)
            try:
                return operations[request["op"]](request)
            finally:
                self.objects.give_back_changes()
        except (CannotTellError, BothChangedError, TooManyObjectsError) as error:
            return {"fault": str(error)}
        except NeedsTestObjectError as error:
            return {"needs": [error.number, error.name]}
        except BaseException as error:
            return self._raised(error)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.module = types.ModuleType(request["module"])
        self.module.__file__ = f"{request['module']}.py"
        sys.modules[request["module"]] = self.module
        self._told.listen(request["source"])
        exec(compile(request["source"], self.module.__file__, "exec", dont_inherit=True), self.module.__dict__)
        return {"names": {name: kind_of(value) for name, value in vars(self.module).items() if is_told(name, value)}}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call by dotted path. A class on the way, as in `Solution.two_sum`, is made an instance of."""
        target: Any = self.module
        for part in request["path"].replace("()", "").split("."):
            target = getattr(target() if isinstance(target, type) else target, part)
        return self.invoke(target, request)

    def method(self, request: dict[str, Any]) -> dict[str, Any]:
        owner = self._owner(request)
        return self.invoke(owner if request["name"] is None else getattr(owner, request["name"]), request)

    def special(self, request: dict[str, Any]) -> dict[str, Any]:
        owner = self._owner(request)
        method = getattr(type(owner), request["name"])
        if request["name"] not in PASSIVE:
            request = {**request, "kwargs": {}}
            return self.invoke(lambda *args: method(owner, *args), request, always=request["name"] in WITH)
        return self._giving(method(owner, *[self.objects.decode(item) for item in request["args"]]))

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._giving(getattr(self._owner(request), request["name"]))
        return {**answer, **self._kept_changed(asked=False)}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        owner, name = self._owner(request), request["name"]
        if (owner is self.module or isinstance(owner, type)) and name in vars(owner):
            self.originals.setdefault((id(owner), name), vars(owner)[name])
        request = {"args": [request["value"]], "kwargs": {}, "in_place": request["in_place"]}
        return self.invoke(lambda value: setattr(owner, name, value), request)

    def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete an attribute; one of the module or a class that was set anew gets its first value back, as mock.patch leaves it."""
        owner, name = self._owner(request), request["name"]
        if (id(owner), name) in self.originals:
            setattr(owner, name, self.originals[id(owner), name])
        else:
            delattr(owner, name)
        return {"ok": None, **self._kept_changed(asked=True)}

    def _named(self, name: str) -> Any:
        """What a name stood for before a test set it anew: a test that holds that means it."""
        key = (id(self.module), name)
        return self.originals[key] if key in self.originals else getattr(self.module, name)

    def copy(self, request: dict[str, Any]) -> dict[str, Any]:
        import copy

        owner = self._owner(request)
        return {"ok": self._encode(copy.deepcopy(owner) if request["deep"] else copy.copy(owner))}

    def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        kind: type = self.objects[request["of"]]
        name = kind.__name__
        path = name if vars(self.module).get(name) is kind else None
        return {"ok": None, "class": describe_class(kind, self.objects, path)}

    def invoke(self, function: Any, request: dict[str, Any], *, always: bool = False) -> dict[str, Any]:
        """Call, and tell which arguments the call has changed where it is asked, where it gives no value, or `always`."""
        args = [self.objects.decode(item) for item in request["args"]]
        kwargs = {name: self.objects.decode(item) for name, item in request["kwargs"].items()}
        names = [*map(str, range(len(args))), *kwargs]
        sent = [*request["args"], *request["kwargs"].values()]
        arguments = [*args, *kwargs.values()]
        # What the tests give back is sent by its number alone.
        contents = [self._encode(one) if is_lent(data) else data for data, one in zip(sent, arguments, strict=True)]
        result = None
        try:
            result = function(*args, **kwargs)
        except OURS:
            raise
        except BaseException as error:
            answer = self._raised(error)
        else:
            answer = self._giving(result)
        if request["in_place"] is False or "fault" in answer:
            return answer
        changed: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        asked = always or request["in_place"] or _is_nothing(answer)
        for index, (name, data) in enumerate(zip(names, contents, strict=True)):
            # The traceback of what was raised holds them too.
            may_be_kept = "raised" not in answer and not is_lent(sent[index]) and arguments[index] is not result
            is_kept = may_be_kept and is_held_after_call(arguments, index)
            after = data
            if not asked:
                if self._differs(data, arguments[index]):
                    # The test is not told to what, for a message alone: its own has another content, and cannot be the same from here on.
                    changed[name] = None
                    continue
            elif (after := self._encode(arguments[index])) != data:
                changed[name] = after
            if is_kept:
                kept[name] = self._lender.keep(arguments[index], after)
            if arguments[index] is result and type(result) in MUTABLE:
                answer["same"] = name
        return {**answer, "changed": changed, "kept": kept, **self._kept_changed(asked=asked)}

    def _kept_changed(self, *, asked: bool) -> dict[str, Any]:
        """What the tests are told of arguments that were kept: what has become of them, or that they have changed."""
        if not (asked or self._sees_all):
            return {"spoilt": True} if self._lender.has_changed(self.objects.encode) else {}
        changed = self._lender.changes(self.objects.encode)
        return {"kept_changed": changed} if changed else {}

    def _differs(self, data: Any, argument: Any) -> bool:
        """Whether a call has changed this argument, as far as that is quickly seen."""
        if type(argument) not in MUTABLE:
            return False
        try:
            return bool(self.objects.decode(data) != argument)
        except Exception:  # what is as it was is equal, and raises nothing
            return True

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], what: dict[str, str]) -> Any:
        """Call a function of the tests, or use an object of theirs, and serve what they ask before that returns."""
        with self._calling_back, deeper():
            encoded = {name: self._encode(item) for name, item in kwargs.items()}
            self._send({"callback": number, "args": [self._encode(item) for item in args], "kwargs": encoded, **what})
            while (request := loads(self._requests.readline()))["op"] != "resume":
                self._send(self.answer(request))
            self._state.set(request.get("state", {}))
            self._lender.take_back(request, self.objects.decode)
        for index, data in request.get("changed", {}).items():
            replace_content(args[int(index)], self.objects.decode(data))
        if "raised" in request:
            raise self.objects.decode(request["raised"])
        return self.objects.decode(request["ok"])

    def _giving(self, value: Any) -> dict[str, Any]:
        return {"ok": self._encode(value), **self._lender.lend(value)}

    def _owner(self, request: dict[str, Any]) -> Any:
        return self.module if request["of"] is None else self.objects.decode(request["of"])

    def _encode(self, value: Any) -> Any:
        try:
            return self.objects.encode(value)
        except (NotPlainError, RecursionError) as error:
            raise CannotTellError(f"an answer that cannot pass: {error}") from None

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
        self._answers.write(dumps(answer).encode() + b"\n")
        self._answers.flush()


def _is_nothing(answer: dict[str, Any]) -> bool:
    """Whether no value was given that the tests could look at: arguments are then looked at."""
    return answer.get("ok") is None


def is_lent(data: Any) -> bool:
    """Whether an argument, as it was sent, is a container that the candidate has given."""
    return type(data) is dict and "lent" in data


def is_told(name: str, value: Any) -> bool:
    """Whether the tests may have this name of the module: of those that are Python's, what a program says of itself."""
    is_pythons = name[:2] == name[-2:] == "__"
    return not is_pythons or (isinstance(value, str) and name not in ("__name__", "__file__", "__doc__", "__path__"))


def kind_of(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    return "callable" if callable(value) else "value"


def main() -> None:
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what the candidate prints is for the tests that capture it, and nobody else
        Candidate(requests, answers).serve()


if __name__ == "__main__":
    main()
