"""The process that holds a candidate's code and calls it: one JSON line in, one out.

It is on the candidate's side of the fence. The candidate may change anything here, and gains nothing: it can only answer, and
what the answers should be is not in this process.

    {"op": "load", "source": "...", "module": "solution"}       -> {"names": {"add": "callable", "Stack": "class", ...}}
    {"op": "call", "path": "add", "args": [1, 2], "kwargs": {}, "in_place": false}   -> {"ok": 3}
    {"op": "method", "ref": 4, "name": "push", "args": [[1]], ..., "in_place": true}   -> {"ok": null, "changed": {"0": []}}
    {"op": "get" | "set", "ref": 4, "name": "size", ...}           -> {"ok": 1}
    an exception                                                  -> {"raised": {"classes": ["ValueError", ...], "text": "..."}}
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import traceback
import types
from typing import Any

from agentrl.sandboxes.inside.plain_data import decode, encode

KEPT_OBJECTS = 100_000


class Candidate:
    def __init__(self) -> None:
        self.module = types.ModuleType("solution")
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {
                "load": self.load,
                "call": self.call,
                "method": self.method,
                "get": self.get,
                "set": self.set,
            }[request["op"]](request)
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            traceback.print_exc()
            classes = [kind.__name__ for kind in type(error).__mro__]
            return {"raised": {"classes": classes, "text": str(error)[:10_000]}}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.module = types.ModuleType(request["module"])
        self.module.__file__ = f"{request['module']}.py"
        sys.modules[request["module"]] = self.module
        exec(compile(request["source"], self.module.__file__, "exec", dont_inherit=True), self.module.__dict__)
        return {"names": {name: kind_of(value) for name, value in vars(self.module).items() if name[:2] != "__"}}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call by dotted path. A class on the way, as in `Solution.two_sum`, is made an instance of."""
        target: Any = self.module
        parts = request["path"].split(".")
        for part in parts:
            target = getattr(target() if isinstance(target, type) else target, part)
        return self.invoke(target, request)

    def method(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.invoke(getattr(self.objects[request["ref"]], request["name"]), request)

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        owner = self.module if request["ref"] is None else self.objects[request["ref"]]
        return {"ok": encode(getattr(owner, request["name"]), self.refer)}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        setattr(self.objects[request["ref"]], request["name"], decode(request["value"], self.objects.__getitem__))
        return {"ok": None}

    def invoke(self, function: Any, request: dict[str, Any]) -> dict[str, Any]:
        """Call, and where it is asked, tell which arguments the call has changed."""
        args = [decode(item, self.objects.__getitem__) for item in request["args"]]
        kwargs = {name: decode(item, self.objects.__getitem__) for name, item in request["kwargs"].items()}
        value = encode(function(*args, **kwargs), self.refer)
        if not request["in_place"]:
            return {"ok": value}
        changed = {}
        for index, (before, argument) in enumerate(zip(request["args"], args, strict=True)):
            if isinstance(argument, list | dict | set | bytearray):
                after = encode(argument, self.refer)
                if after != before:
                    changed[index] = after
        return {"ok": value, "changed": changed}

    def refer(self, value: Any) -> dict[str, Any]:
        number = self.numbers.get(id(value))
        if number is None:
            if len(self.objects) >= KEPT_OBJECTS:
                raise MemoryError(f"more than {KEPT_OBJECTS} objects are referred to")
            number = self.numbers[id(value)] = len(self.objects) + 1
            self.objects[number] = value
        return {"ref": [number, type(value).__name__]}


def kind_of(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        return "exception " + next(kind.__name__ for kind in value.__mro__ if hasattr(builtins, kind.__name__))
    if isinstance(value, type):
        return "class"
    return "callable" if callable(value) else "value"


def main() -> None:
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what the candidate prints is for its author, not for us
        candidate = Candidate()
        for line in requests:
            answer = json.dumps(candidate.answer(json.loads(line)))
            answers.write(answer.encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
