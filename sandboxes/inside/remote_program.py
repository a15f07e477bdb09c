"""The program as the tests see it when it runs apart: a module whose functions ask the program's process, through the host.

A call that gives plain data returns it; one that raises raises the nearest exception of Python's own. Anything else, such as a process
that has ended, fails the test whatever its code makes of that: it is a BaseException, and it is remembered until the next test.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

from agentrl.sandboxes.inside.plain import NotPlainError, decode, encode_arguments, read_line, write_line
from agentrl.sandboxes.inside.program_calls import WITH_EXCEPTIONS

__tracebackhide__ = True  # for pytest: a reader of what failed is shown the tests' own frames


class CallFailedError(BaseException):
    """A call that no test passes with."""


PROGRAMS = b"a"
"""How a line begins that is the program's; one that begins otherwise is the host's word that there is none."""


class RemoteProgram:
    """The program in another process. `requests` go there and `answers` come from there, a line each."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self.test = 0
        """Number of the test that runs: each has time of its own."""
        self.failure: tuple[str, str] | None = None
        """Status and message of the test that runs, where a call has failed it."""
        self._requests, self._answers = requests, answers

    def load(self) -> list[str]:
        """Return the names of its functions, once it is loaded. Raises what the program raises."""
        names = self._receive()["names"]
        return [name for name in map(str, names) if not name.startswith("__")]

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that asks the program's."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        return function

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function of the program's returns, and change its arguments as it has changed them."""
        try:
            parts = encode_arguments([*args, *kwargs.values()])
            named = {"dict": [*zip(kwargs, parts[len(args) :], strict=True)]}
            line = write_line({"name": name, "args": parts[: len(args)], "kwargs": named})
        except NotPlainError as error:
            raise self.fail(
                "checker_error", f"the tests call {name} with {error}; give them trust = 'inside'"
            ) from None
        self._requests.write(b"%d " % self.test + line)
        self._requests.flush()
        answer = self._receive()
        try:
            value = decode(answer["ok"])
            for before, after in zip([*args, *kwargs.values()], decode(answer["args"]), strict=True):
                change(before, after)
            return value
        except (KeyError, ValueError) as error:
            raise self.fail("wrong_answer", f"{name} gives no answer that makes sense: {error}") from None

    def fail(self, status: str, message: str) -> CallFailedError:
        """Fail the test that runs, and return the exception that ends it."""
        self.failure = self.failure or (status, message)
        return CallFailedError(message)

    def _receive(self) -> dict[str, Any]:
        line = self._answers.readline()
        if line[:1] != PROGRAMS:
            raise self.fail(*read_line(line[1:])["ended"])
        try:
            answer = read_line(line[1:])
            if "fault" in answer:
                raise self.fail("wrong_answer", f"the program gives {answer['fault']}; if right, use trust = 'inside'")
            if "raised" not in answer:
                return dict(answer)
            name, content, text = answer["raised"]
            args = decode(content)
        except (ValueError, TypeError) as error:
            raise self.fail("wrong_answer", f"the program's answer makes no sense: {error}") from None
        module, _, name = str(name).rpartition(".")
        kind = getattr(sys.modules.get(module), name, None) if module in WITH_EXCEPTIONS else None
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise self.fail("runtime_error", str(text))
        try:
            raised = kind(*args)
        except TypeError:  # it takes others than those that its object shows
            raised = kind.__new__(kind, *args)
        raise raised


def change(before: Any, after: Any) -> None:
    """Make a list, deque, bytearray, set or dict of the tests' what it is after a call."""
    if type(before) is type(after) and isinstance(before, list | deque | bytearray | set | dict):
        before.clear()
        (before.update if isinstance(before, set | dict) else before.extend)(after)


def module_of(program: RemoteProgram, name: str, names: list[str], wanted: list[str]) -> types.ModuleType:
    """Return the module that tests import as the program. `import *` gives those of its functions that are `wanted`, and no other."""
    module = types.ModuleType(name)
    module.__dict__.update({one: program.function(one) for one in names}, __all__=[*{*wanted} & {*names}])
    return module
