"""Holds a program and answers calls of its functions. Nothing that is expected of it is in this process, so it may do here what it likes.

    {"source": ..., "module": "solution"}           ─►  {"names": ["add", ...]}
    {"name": "add", "args": [1, 2], "kwargs": {}}   ─►  {"ok": 3, "args": [1, 2]}, of which the arguments, named ones last, are as the call leaves them

or {"raised": [a class of Python's, its arguments, text]}, or {"fault": why the value cannot pass}. A call that is "value_only"
is answered by {"ok": value} alone.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.plain import NotPlainError, decode, encode, encode_arguments, write_line
from agentrl.sandboxes.inside.program import private_streams

CALLS = "from agentrl.sandboxes.inside.program_calls import main; main()"
"""The code that does it."""
SHOWN_CHARACTERS = 2000
WITH_EXCEPTIONS = ("builtins", "decimal", "json.decoder", "re", "statistics", "zoneinfo")
"""Modules whose exceptions the tests get as themselves; in place of any other, they get the nearest of its bases."""
CLASS = "Solution"
"""The class that LeetCode's programs have their functions in."""


def main() -> None:
    """Load the program, then answer calls until there are no more."""
    requests, answers = private_streams()
    job = json.loads(requests.readline())
    module = sys.modules[job["module"]] = types.ModuleType(job["module"])
    own_process = os.getpid()

    def load() -> dict[str, Any]:
        exec(compile(job["source"], f"{job['module']}.py", "exec", dont_inherit=True), module.__dict__)
        return {"names": sorted(functions(module))}

    answer = answered(load)
    answers.write(answer)
    answers.flush()
    for request in requests if answer.startswith(b'{"names"') else ():
        answer = answered(lambda: answer_call(module, json.loads(request)))  # noqa: B023  called at once
        if os.getpid() != own_process:  # forked by the call, which is answered once
            break
        answers.write(answer)
        answers.flush()
    os._exit(0)  # whatever threads the program has left


def answered(act: Callable[[], dict[str, Any]]) -> bytes:
    """Return the line with the result of an act, or with its exception."""
    try:
        return write_line(act())
    except NotPlainError as error:
        return write_line({"fault": str(error)})
    except BaseException as error:
        return described(error)


def answer_call(module: types.ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Call a function of the program, and return what the tests get."""
    args, kwargs = decode(request["args"]), decode(request["kwargs"])
    value = find(module, request["name"])(*args, **kwargs)
    answer = {"ok": encode(value)}
    if not request.get("value_only"):
        answer["args"] = encode_arguments([*args, *kwargs.values()])
    return answer


def functions(module: types.ModuleType) -> set[str]:
    """Return the names by which `find` finds functions."""
    methods = vars(module).get(CLASS)
    names = {name for name, value in vars(module).items() if callable(value)}
    return names | {name for name in dir(methods) if isinstance(methods, type) and not name.startswith("_")}


def find(module: types.ModuleType, path: str) -> Any:
    """Return the function of a name: the module's own, else the method of a new `Solution()`; for "Solution.name" the other way round.

    Raises:
        AttributeError: There is none.
    """
    owner, _, name = path.replace("()", "").rpartition(".")
    for holder in (owner, "") if owner else ("", CLASS):
        kind = vars(module).get(holder)
        if not holder and name in vars(module):
            return vars(module)[name]
        if isinstance(kind, type) and hasattr(kind, name):
            return getattr(kind(), name)
    raise AttributeError(f"the program has no {path}")


def in_a_line(error: BaseException) -> str:
    """Return an exception in a line."""
    try:
        return f"{type(error).__name__}: {error}"[:SHOWN_CHARACTERS].rstrip(": ")
    except BaseException:  # an exception of the program's may be anything
        return type(error).__name__


def described(error: BaseException) -> bytes:
    """Return the line that tells of an exception: as the nearest class of Python's, with its arguments if those can pass."""
    base: Any = next(base for base in type(error).__mro__ if base.__module__ in WITH_EXCEPTIONS)
    kind, text = f"{base.__module__}.{base.__name__}", in_a_line(error)
    try:
        args = [*error.args] if type(error).__str__ is base.__str__ else [str(error)]
        return write_line({"raised": [kind, encode(args), text]})
    except BaseException:
        return write_line({"raised": [kind, [text], text]})
