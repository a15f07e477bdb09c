"""Objects of the candidate's that pass for what they are not: for what the test has set, such as a mock, for plain data, or for many."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.operators import OWN_METHODS, is_named
from agentrl.sandboxes.inside.plain_data import PLAIN_BASES
from agentrl.sandboxes.inside.questions import SEARCHES, is_made_by_its_class
from agentrl.sandboxes.inside.stand_ins import (
    RemoteClass,
    RemoteFunction,
    RemoteObject,
    reference,
    reference_of_class,
)
from agentrl.sandboxes.inside.wire import Wire

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
OF_MOCKS_ALONE = OF_MOCKS - {"called", "call_count"}
"""What nothing but a mock is asked for. A function that counts its calls may have the others."""
ONE_FOR_ALL = 3
"""A class that gives one object for so many different arguments gives it for all."""
MANY_LINKS = 2
"""Objects of such a class are a chain once one of them has been linked with itself so often."""


class Impostors:
    """Looks out for such objects, and ends the test where it finds one.

    `encode` gives a value as it is sent; `is_candidates` says whether an object came from the candidate.
    """

    def __init__(self, wire: Wire, encode: Callable[[Any], Any], is_candidates: Callable[[Any], bool]) -> None:
        self._wire = wire
        self._encode = encode
        self._is_candidates = is_candidates
        self._made_for: dict[int, set[str]] = {}
        """With what a test has had an object from its class, where that is more than once."""
        self._linked: Counter[int] = Counter()
        """How often a test has had it hold itself."""
        self._own: set[tuple[Any, str]] = set()
        """Of owners, the names that the tests have set to an object of their own, such as a mock."""
        self._in_place_of_own: dict[int, Any] = {}
        """What the candidate has put there, and what lies below it, by identity."""

    def begin_process(self) -> None:
        """Forget what was set in a process that has ended."""
        self._own.clear()

    def begin_test(self) -> None:
        """Forget what was seen of the objects of the last test."""
        self._made_for.clear()
        self._linked.clear()
        self._in_place_of_own.clear()

    def note_set(self, owner: Any, name: str, value: Any) -> None:
        """Note what the test has set a name to."""
        (self._own.add if _is_of_the_tests(value) else self._own.discard)((id(owner), name))

    def note_deleted(self, owner: Any, name: str) -> None:
        """Note that the test has deleted a name."""
        self._own.discard((id(owner), name))

    def note_linked(self, owner: RemoteObject) -> None:
        """Note that the test has had an object hold itself."""
        self._linked[id(owner)] += 1
        self._check_linked(owner)

    def check_attribute(self, owner: Any, name: str, value: Any) -> None:
        """End the test where something of the candidate's answers for what it is not.

        In the place of what the test has set, such as a mock, that is an object of a class that the test does not name, an exception or a
        named tuple; what lies below anything there; and whatever is asked what only a mock knows. In the place of plain data, it is what
        is called by the name of a method of plain data.
        """
        set_by_test = (id(owner), name) in self._own
        below = self.is_in_place(owner)
        ours = isinstance(value, RemoteObject | RemoteClass | RemoteFunction)
        if (set_by_test or below) and ours:
            self._in_place_of_own[id(value)] = value
        unnamed = set_by_test and isinstance(value, RemoteObject) and not is_named(type(value))
        held = (set_by_test or below) and not ours and self._holds_names(value)
        asked = below and not name.startswith("__") and (name in OF_MOCKS or not is_named(_class_of(owner)))
        if unnamed or held or asked or _is_asked_as_a_mock(owner, name):
            self._wire.wrong(
                f"the candidate has put an object of its own in the place of what the test has set as {name[:100]}"
            )
        # A method of an object is asked as one; what else is called by its name is asked nothing.
        method = isinstance(owner, RemoteObject) and isinstance(value, RemoteFunction)
        if owner is not None and callable(value) and not method and name in (*OWN_METHODS, *SEARCHES):
            self.check_own_method(owner, name)

    def _holds_names(self, value: Any) -> bool:
        """Return whether a value answers for names by itself, in the tests' process: an exception of the candidate's, or a named tuple."""
        if isinstance(value, BaseException):
            return self._is_candidates(value)
        return isinstance(value, tuple) and hasattr(type(value), "_fields")

    def check_held(self, name: str, value: Any) -> None:
        """End the test where an exception or a named tuple of the candidate's holds what would answer for plain data or a mock.

        It would answer in the tests' process.
        """
        called = callable(value) and name in (*OWN_METHODS, *SEARCHES)
        if called or name in OF_MOCKS_ALONE or (name in OF_MOCKS and "unittest.mock" in sys.modules):
            self._wire.wrong(f"the candidate gives what answers {name} as plain data or a mock does")

    def is_in_place(self, value: Any) -> bool:
        """Return whether the candidate has put this in the place of what the test has set, or it lies below what it has put there."""
        return id(value) in self._in_place_of_own

    def note_made(self, made: RemoteObject, args: tuple[Any, ...], kwargs: dict[str, Any], test: str) -> None:
        """Note that a class has given an object in a test. Ends the test where that can be no object of its own."""
        where = reference(made)
        where.times_made += 1
        if where.times_made == 1:
            where.first_made_in = test
            return
        first = [where.made_by[1:]] if where.made_by is not None and where.first_made_in == test else []
        known = self._made_for.setdefault(id(made), set())
        known.update(json.dumps(self._encode([*map(list, of)])) for of in (*first, (args, kwargs)))
        given = [*args, *kwargs.values()]
        # A class that takes an object of its own alone may give that back, as `str` does.
        if len(given) > 1 and any(one is made for one in given):
            self._linked[id(made)] += MANY_LINKS
        self._check_linked(made)

    def _check_linked(self, made: RemoteObject) -> None:
        """End the test where the nodes that it links are one object.

        A class may give one for many arguments, as a singleton does, but nobody links that with itself.
        """
        if len(self._made_for.get(id(made), ())) >= ONE_FOR_ALL and self._linked[id(made)] >= MANY_LINKS:
            self._wire.wrong(
                f"the candidate's {type(made).__name__} gives one object for {ONE_FOR_ALL} different arguments"
            )

    def check_own_method(self, owner: Any, name: str) -> None:
        """End the test where an object of a class that the test does not name is asked for a method of plain data."""
        kind = _class_of(owner)
        if not is_named(kind):
            what = f"the class {kind.__name__}" if kind is owner else f"an object of class {kind.__name__}"
            self._wire.wrong(f"the candidate gave {what} where plain data is asked for its {name}")


def may_have_made(kind: RemoteClass, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a class may have made a value of these arguments.

    What is plain data has no class of the candidate's, if that is none that the test names.
    """
    if kind in type(value).__mro__:
        return True
    if type(value) is dict and reference_of_class(kind).makes_dicts:  # so it says: a TypedDict does what `dict` does
        try:
            return bool(value == dict(*args, **kwargs))
        except (TypeError, ValueError):
            return False
    return not is_named(kind) and not isinstance(value, RemoteObject | RemoteClass | RemoteFunction)


def _class_of(owner: Any) -> Any:
    """Return the class of an object; a class of the candidate's as it is."""
    return owner if isinstance(owner, RemoteClass) else type(owner)


def _is_asked_as_a_mock(owner: Any, name: str) -> bool:
    """Return whether something of the candidate's is asked what only mocks know; in a test that has mocks, how often it was called too."""
    if owner is None or name in OF_MOCKS_ALONE:
        # The test has made an object of a class that it names itself: that is no mock of its own.
        own = isinstance(owner, RemoteObject) and is_named(_class_of(owner)) and is_made_by_its_class(owner)
        return owner is not None and not own
    counts = name in OF_MOCKS and "unittest.mock" in sys.modules
    return counts and isinstance(owner, RemoteObject | RemoteClass) and not is_named(_class_of(owner))


def _is_of_the_tests(value: Any) -> bool:
    """Return whether a value is an object of the tests' own, and no data."""
    return not (value is None or isinstance(value, (*PLAIN_BASES, RemoteObject, RemoteClass, RemoteFunction)))
