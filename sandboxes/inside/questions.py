"""What the tests ask the candidate's operators, which are told what is compared: questions that a program can answer without knowing anything.

    assert V(1) + V(2) == V(3)          the program is asked whether two objects are equal, of which one is what is expected
    assert 3 in bag                     it is asked whether this is in it, and not what is in it

The first run of the tests notes each question whose answer speaks for the program. Then the tests run again, in new processes, where
the questions have other operands: see `replay`. An answer that stays the same whatever is asked earns nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Set
from contextlib import suppress
from numbers import Number
from typing import Any, NamedTuple, Protocol

from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference

Operands = tuple[Any, ...]
Ask = Callable[[Any, Operands], Any]
"""Asks an operator of an object."""
Make = Callable[[Operands, dict[str, Any]], Any]
"""Calls a class."""

SEARCHES = ("index", "rindex", "find", "rfind", "count")
"""Methods that say where or how often something is in an object."""
YES = {
    **dict.fromkeys(("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"), True),
    "__ne__": False,
}
"""The answer to a comparison that speaks for a program: that two things differ is so of most."""
EQUALITY = ("__eq__", "__ne__")
ORDERS = ("__lt__", "__le__", "__gt__", "__ge__")
MOST_RECIPES = 8
"""Of one class, that a later run is told."""
LONGEST_RECIPE = 50_000
"""Characters of what an object was made of, or changed by, as JSON: the host reads it."""
ANOTHER_HASH = "is equal to an object with another hash"
MOST_HASHES = 12
"""Of the comparisons that a test makes with one operator of a class, so many are asked for hashes too."""
SET_METHODS = ("union", "intersection", "difference", "symmetric_difference")
GATHERING = frozenset(
    {*SET_METHODS, *(f"__{side}{name}__" for name in ("sub", "and", "or", "xor") for side in ("", "r"))}
)
"""Operators and methods of sets: who gives back what is given, or nothing, needs to know nothing."""
COLLECTIONS = (set, frozenset, dict)
NOT_IMPLEMENTED = "not implemented"
MOST_ANSWERS = 100_000
"""Characters of all answers of a run that are no numbers, which the host reads."""
MOST_ALIKE = 1_000
"""Questions of a test with one answer, of a class and an operator, that are noted: who answers all alike is found by the first of them."""
MOST_QUESTIONS = 10_000
"""Of one run, that are noted: the host reads them in one line."""
LONGEST_NAME = 100


class Change(NamedTuple):
    """What a test has done to an object."""

    kind: str
    """`call`, `set` or `special`."""
    name: str
    args: Operands
    kwargs: dict[str, Any]


class Round(Protocol):
    """One run of the tests."""

    def begin(self, test: str) -> None:
        """Begin a test."""

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Ask an operator of an object of the candidate's."""

    def make(self, kind: RemoteClass | None, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        """Call a class of the candidate's; or, with None, a function or a class's method, which may make an object too."""

    def note_change(self, one: Any, change: Change) -> None:
        """Note that a test has changed an object for certain."""


class Question(NamedTuple):
    """A question and its answer, by where it stands in its test."""

    test: str
    number: str
    """The class, the operator, and how often the test had asked that by then."""
    operator: str
    kind: str
    """The name of the class that was asked."""
    answer: Any
    """Plain data, or NOT_IMPLEMENTED."""
    replaced: tuple[str, int] | None
    """Where an operand is made that the test has only compared: another can be made in its place."""
    beside: tuple[str, int] | None
    """Where an operand is made that the test has used too, before the other operand was there: another can be made beside it."""
    made: bool = False
    """Whether its class has made each operand."""
    shifted: bool = False
    """Whether it was asked of the sum or the difference of an object and a number."""


class Count:
    """Numbers the questions and the calls that may make an object, in each test: a test asks the same in each run."""

    def __init__(self) -> None:
        self.test = ""
        self._asked: Counter[str] = Counter()
        self._made = 0

    def begin(self, test: str) -> None:
        """Begin a test."""
        self.test, self._asked, self._made = test, Counter(), 0

    def question(self, one: Any, operator: str) -> tuple[int, str]:
        """Return how often this was asked of a class, and what the question is known by in other runs."""
        kind = f"{class_name(one)} {operator}"
        self._asked[kind] += 1
        return self._asked[kind], f"{kind} {self._asked[kind]}"

    def call(self) -> tuple[str, int]:
        """Return the test that runs, and the number of the next call in it."""
        self._made += 1
        return self.test, self._made


class FirstRun:
    """The run that counts. It asks what the tests ask, and notes what is to be asked again."""

    def __init__(self) -> None:
        self._count = Count()
        self._noted: list[tuple[Question, tuple[Any, ...]]] = []
        self._room = MOST_ANSWERS
        self._alike: Counter[tuple[str, str, str, str]] = Counter()
        self._changes: dict[str, Any] = {}
        self._recipes: dict[str, list[Any]] = {}
        self.revoked: list[tuple[str, str]] = []
        """Tests that pass by what no object may answer, and why."""

    def begin(self, test: str) -> None:
        """Begin a test."""
        self._count.begin(test)

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Put a question to an object, and return its answer."""
        times, number = self._count.question(one, operator)
        equality = operator in EQUALITY
        if equality and times <= MOST_HASHES:
            ask = with_hashes(ask, YES[operator], self._has_another_hash)
        answer = ask(one, operands)
        equality = equality and isinstance(answer, bool)
        order = operator in ORDERS and isinstance(answer, bool) and isinstance(operands[0], RemoteObject)
        noted = answer is NotImplemented or equality or order or speaks(operator, operands, answer)
        alike = (self._count.test, class_name(one), operator, str(answer)[:20] if isinstance(answer, bool) else "")
        if noted and self._alike[alike] < MOST_ALIKE:
            self._alike[alike] += 1
            self._note(number, operator, (one, *operands), answer)
        return answer

    def _note(self, number: str, operator: str, operands: Operands, answer: Any) -> None:
        if len(self._noted) == MOST_QUESTIONS:
            why = f"the candidate's {class_name(operands[0])} is asked more than can be asked again"
            self.revoked.append((self._count.test, why))
            return
        try:
            told = NOT_IMPLEMENTED if answer is NotImplemented else encode(answer)
        except NotPlainError:  # there are objects in it, which are asked by themselves
            return
        if isinstance(answer, str | bytes | list | tuple | Set | dict):
            self._room -= len(json.dumps(told))
            if self._room < 0:
                why = f"the candidate's {class_name(operands[0])} answers {operator} with more than can be asked again"
                self.revoked.append((self._count.test, why))
                return
        one = operands[0]
        shifted = reference(one).shifted
        question = Question(self._count.test, number, operator, class_name(one), told, None, None, shifted=shifted)
        self._noted.append((question, operands))

    def make(self, kind: RemoteClass | None, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        """Have an object made by its class, or by a function."""
        where = self._count.call()
        made = make(args, kwargs)
        if isinstance(made, RemoteObject) and reference(made).made is None and reference(made).made_by is not None:
            reference(made).made = where
            recipes = [] if kind is None else self._recipes.setdefault(kind.__name__, [])
            if (args or kwargs) and len(recipes) < MOST_RECIPES and (told := _told([args, kwargs])) is not None:
                recipes.append(told)
        return made

    def note_change(self, one: Any, change: Change) -> None:
        """Note that the test has changed an object."""
        reference(one).change = change
        if type(one).__name__ not in self._changes and (told := _told(list(change))) is not None:
            self._changes[type(one).__name__] = told

    def _has_another_hash(self, one: Any) -> None:
        why = f"the candidate's object of class {class_name(one)} {ANOTHER_HASH}"
        self.revoked.append((self._count.test, why))

    def told(self) -> dict[str, Any]:
        """Return what a later run needs to know."""
        return {"questions": self._questions(), "changes": self._changes, "recipes": self._recipes}

    def _questions(self) -> list[Question]:
        """Return what was noted, with where its operands are made."""
        found = []
        for question, operands in self._noted:
            objects = [one for one in reversed(operands) if isinstance(one, RemoteObject)]
            made = [one for one in objects if reference(one).made is not None and has_arguments(one)]
            made.sort(key=lambda one: not is_made_by_its_class(one))
            replaced = next((reference(one).made for one in made if not reference(one).touched), None)
            beside = None
            if replaced is None and len(objects) == 2:
                youngest = max(objects, key=lambda one: reference(one).number or 0)
                made.sort(key=lambda one: one is youngest)
                beside = reference(made[0]).made if made else None
            class_made = len(objects) == 2 and all(map(is_made_by_its_class, objects))
            found.append(question._replace(replaced=replaced, beside=beside, made=class_made))
        return found


def _told(value: Any) -> Any:
    """Return what a later run is told of a value; None where it cannot be told, or is long."""
    try:
        told = encode(value)
    except (NotPlainError, RecursionError):
        return None
    return told if len(json.dumps(told)) <= LONGEST_RECIPE else None


def class_name(one: Any) -> str:
    """Return the name of an object's class, which a candidate may have made long."""
    return type(one).__name__[:LONGEST_NAME]


def with_hashes(ask: Ask, yes: bool, on_difference: Callable[[Any], None]) -> Ask:
    """Asks whether objects are equal, and where they are, for their hashes. Each run does, or a program could tell one from another."""

    def asked(one: Any, operands: Operands) -> Any:
        answer = ask(one, operands)
        if answer is yes and isinstance(operands[0], RemoteObject):
            with suppress(Exception):
                if hash(one) != hash(operands[0]):
                    on_difference(one)
        return answer

    return asked


def has_arguments(one: Any) -> bool:
    """Return whether an object was made of something."""
    made_by = reference(one).made_by
    return made_by is not None and bool(made_by[1] or made_by[2])


def is_made_by_its_class(one: Any) -> bool:
    """Return whether the test has called its class to get an object."""
    made_by = reference(one).made_by
    return made_by is not None and isinstance(made_by[0][0], RemoteClass) and made_by[0][1] is None


def is_number(value: Any) -> bool:
    """Return whether a value of the test's is a number."""
    numpys = type(value).__module__ == "numpy" and hasattr(value, "dtype") and not value.shape
    return bool(numpys) or (isinstance(value, Number) and not isinstance(value, bool))


def speaks(operator: str, operands: Operands, answer: Any) -> bool:
    """Return whether an answer speaks for a program that knows nothing."""
    if operator in YES:
        return answer is YES[operator]
    if operator in GATHERING and isinstance(operands[0], COLLECTIONS):
        return isinstance(answer, COLLECTIONS) and (not answer or answer == operands[0])
    number = is_number(answer)
    if operator in ("find", "rfind", "count") and number:
        return bool(answer > 0 if operator == "count" else answer >= 0)
    if operator in SEARCHES:
        return number or isinstance(answer, str | bytes)
    if not operator.startswith("__"):
        return not isinstance(answer, RemoteObject) and bool(answer)
    return number or isinstance(answer, bool | str | bytes | list | tuple)
