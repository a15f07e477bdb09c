"""What the tests ask the candidate's operators, which are told what is compared: questions that a program can answer without knowing anything.

    assert V(1) + V(2) == V(3)          the program is asked whether two objects are equal, of which one is what is expected
    assert 3 in bag                     it is asked whether this is in it, and not what is in it

The first run of the tests notes each question whose answer speaks for the program. Then the tests run again, in new processes, where
the questions have other operands: see `replay`. An answer that stays the same whatever is asked earns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from agentrl.sandboxes.inside.plain_data import NotPlainError, encode
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
MOST_RECIPES = 8
"""Of one class, that a later run is told."""
MOST_HASHES = 12
"""So many objects of a test that are equal are asked for their hashes."""
NOT_IMPLEMENTED = "not implemented"
MOST_QUESTIONS = 10_000
"""Of one run, that are noted: a program that answers all alike is found by the first of them."""


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
        """A test begins."""

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Ask an operator of an object of the candidate's."""

    def make(self, kind: RemoteClass, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        """Call a class of the candidate's."""

    def note_change(self, one: Any, change: Change) -> None:
        """A test has changed an object for certain."""


class Question(NamedTuple):
    """A question and its answer, by where it stands in its test."""

    test: str
    number: int
    operator: str
    kind: str
    """The class that was asked."""
    answer: Any
    """Plain data, or NOT_IMPLEMENTED."""
    replaced: tuple[str, int] | None
    """Where an operand is made that the test has only compared: another can be made in its place."""
    beside: tuple[str, int] | None
    """Where an operand is made that the test has used too, before the other operand was there: another can be made beside it."""
    made: bool = False
    """Whether its class has made each operand."""


class Count:
    """Numbers the questions and the new objects of each test: a test asks the same in each run."""

    def __init__(self) -> None:
        self.test = ""
        self._asked = 0
        self._made = 0

    def begin(self, test: str) -> None:
        self.test, self._asked, self._made = test, 0, 0

    def question(self) -> int:
        self._asked += 1
        return self._asked

    def new_object(self) -> tuple[str, int]:
        self._made += 1
        return self.test, self._made


class FirstRun:
    """The run that counts. It asks what the tests ask, and notes what is to be asked again."""

    def __init__(self) -> None:
        self._count = Count()
        self._noted: list[tuple[Question, tuple[Any, ...]]] = []
        self._changes: dict[str, Any] = {}
        self._recipes: dict[str, list[Any]] = {}
        self.revoked: list[tuple[str, str]] = []
        """Tests that pass by what no object may answer, and why."""

    def begin(self, test: str) -> None:
        self._count.begin(test)

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        number = self._count.question()
        answer = ask(one, operands)
        equality = operator in EQUALITY and isinstance(answer, bool)
        if equality and answer is YES[operator] and number <= MOST_HASHES:
            self._check_hashes(one, operands[0])
        if (answer is NotImplemented or equality or speaks(operator, answer)) and len(self._noted) < MOST_QUESTIONS:
            told = NOT_IMPLEMENTED if answer is NotImplemented else encode(answer)
            question = Question(self._count.test, number, operator, type(one).__name__, told, None, None)
            self._noted.append((question, (one, *operands)))
        return answer

    def make(self, kind: RemoteClass, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        where = self._count.new_object()
        made = make(args, kwargs)
        if isinstance(made, RemoteObject):
            reference(made).made = where
            recipes = self._recipes.setdefault(kind.__name__, [])
            if (args or kwargs) and len(recipes) < MOST_RECIPES:
                with suppress(NotPlainError):
                    recipes.append(encode([args, kwargs]))
        return made

    def note_change(self, one: Any, change: Change) -> None:
        reference(one).change = change
        with suppress(NotPlainError):
            self._changes.setdefault(type(one).__name__, encode(list(change)))

    def _check_hashes(self, one: Any, other: Any) -> None:
        if not isinstance(other, RemoteObject):
            return
        try:
            if hash(one) == hash(other):
                return
        except Exception:
            return
        why = f"the candidate's object of class {type(one).__name__} is equal to an object with another hash"
        self.revoked.append((self._count.test, why))

    def told(self) -> dict[str, Any]:
        """What a later run needs to know."""
        return {"questions": self._questions(), "changes": self._changes, "recipes": self._recipes}

    def _questions(self) -> list[Question]:
        """What was noted, with where its operands are made."""
        found = []
        for question, operands in self._noted:
            objects = [one for one in reversed(operands) if isinstance(one, RemoteObject)]
            made = [one for one in objects if reference(one).made is not None and has_arguments(one)]
            replaced = next((reference(one).made for one in made if not reference(one).touched), None)
            beside = None
            if replaced is None and len(objects) == 2:
                youngest = max(objects, key=lambda one: reference(one).number or 0)
                beside = next((reference(one).made for one in made if one is not youngest), None)
            class_made = len(objects) == 2 and all(map(is_made_by_its_class, objects))
            found.append(question._replace(replaced=replaced, beside=beside, made=class_made))
        return found


def has_arguments(one: Any) -> bool:
    """Whether an object was made of something."""
    made_by = reference(one).made_by
    return made_by is not None and bool(made_by[1] or made_by[2])


def is_made_by_its_class(one: Any) -> bool:
    """Whether the test has called its class to get an object."""
    made_by = reference(one).made_by
    return made_by is not None and isinstance(made_by[0][0], RemoteClass) and made_by[0][1] is None


def is_number(value: Any) -> bool:
    """Whether a value of the test's is a number."""
    numpys = type(value).__module__ == "numpy" and hasattr(value, "dtype") and not value.shape
    return bool(numpys) or (isinstance(value, int | float | complex) and not isinstance(value, bool))


def speaks(operator: str, answer: Any) -> bool:
    """Whether an answer speaks for a program that knows nothing."""
    if operator in YES:
        return answer is YES[operator]
    number = is_number(answer)
    if not operator.startswith("__") and operator not in SEARCHES:
        return answer is True
    if operator in SEARCHES:
        return number and (answer > 0 if operator == "count" else answer >= 0)
    return number or isinstance(answer, str | bytes | list | tuple)
