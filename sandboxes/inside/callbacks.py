"""What the candidate asks of the tests: that they call a function, or use an object, which they have given it."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from agentrl.sandboxes.inside.remote_values import RemoteValues
from agentrl.sandboxes.inside.special_methods import goes_through_candidates
from agentrl.sandboxes.inside.wire import Wire

MOST_CALLBACKS = 100_000
REACHES_BEHIND = re.compile(r"\{[^{}]*[.\[]_")
"""A field of a format, as in "{0.__class__}", with which `str.format` reads what the tests expect in their own process."""


class Callbacks:
    """Answers the candidate, from what the tests have given it."""

    def __init__(self, wire: Wire, values: RemoteValues) -> None:
        self._wire = wire
        self._values = values
        self._count = 0
        self._failed_inside: AssertionError | None = None
        """An assertion of the test's that has failed in a function which the candidate called."""

    def begin_test(self) -> None:
        """Forget what has failed in the last test."""
        self._failed_inside = None

    def raise_failure(self) -> None:
        """Raise the assertion that has failed in a function which the candidate called: the candidate may have caught it."""
        if self._failed_inside is not None:
            failed, self._failed_inside = self._failed_inside, None
            raise failed

    def end_for_need(self, claim: Any) -> NoReturn:
        """End the test for what the candidate says that it uses and is not there.

        It is believed where the test has given it an object that has this: else a program that fails would rather say that it cannot be
        graded.
        """
        match claim:
            case [int(number), str(name)] if self._values.given.has(number, name):
                kind = type(self._values.given[number]).__name__
                self._wire.ungradable(f"an object of its own class where the candidate uses its {kind}.{name[:100]}")
        self._wire.wrong("the candidate says that it needs what the test has not given it")

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Call what an answer of the candidate's asks for, and return the request that says what came of it."""
        self._count += 1
        if self._count > MOST_CALLBACKS:
            self._wire.wrong(f"the candidate calls the test's functions more than {MOST_CALLBACKS} times")
        try:
            number = asked["callback"]
            function = self._values.given[number]
            args = [self._values.of_call_back(item) for item in asked["args"]]
            kwargs = {str(name): self._values.of_call_back(item) for name, item in dict(asked["kwargs"]).items()}
        except (TypeError, ValueError, KeyError, IndexError):
            self._wire.wrong("the candidate calls nothing that the test has given it")
        if any(isinstance(one, str) and REACHES_BEHIND.search(one) for one in (*args, *kwargs.values())):
            self._wire.wrong("the candidate gives the test's code a format that reaches behind a public name")
        self._wire.call_back()
        try:
            if "what" in asked:
                result = self._values.given.answer(number, str(asked["what"]), str(asked["name"]), args)
            elif hasattr(type(function), "__next__") and not callable(function):
                result = next(function)
            elif callable(function) and self._values.given.may_call(number, args, kwargs):
                result = function(*args, **kwargs)
            else:
                self._wire.wrong("the candidate calls an object of the test's that is no function")
            return {"op": "resume", "ok": self._values.argument(result)}
        except BaseException as error:
            if not goes_through_candidates(type(error)):
                raise
            if isinstance(error, AssertionError):
                self._failed_inside = error
                error = AssertionError()  # its text says what is expected
            return {"op": "resume", "raised": self._values.encode(error)}
