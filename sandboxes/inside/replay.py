"""A run of the tests again, in new processes, in which what they ask has other operands.

    the first run                               this one
    assert V(1) + V(2) == V(3)                  V(1) + V(2) == V(8)
    assert circle.area() - 78.54 < 1e-6         circle.area() - 23.91

No program can tell it from a first run: it has no memory of another, and meets a test that somebody could have written. So who says
yes to this one too says yes to anything. The test itself goes on with the answers of the first run, and so asks the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.foreign import Foreign
from agentrl.sandboxes.inside.mutants import LIKELY, Mutants
from agentrl.sandboxes.inside.plain_data import decode
from agentrl.sandboxes.inside.questions import (
    EQUALITY,
    NOT_IMPLEMENTED,
    YES,
    Ask,
    Change,
    Count,
    Make,
    Operands,
    Question,
    is_made_by_its_class,
    speaks,
)
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference, vars_of
from agentrl.sandboxes.inside.wire import Wire

ATTEMPTS = 4
"""How many other arguments are tried where a class refuses them."""
OF_VALUES = (*EQUALITY, "__contains__")
"""Operators that are told what is expected itself."""
MORE_PAIRS = 6
"""So many more are made where one object that a class has made is equal to another."""
SHIFTS = ("__add__", "__radd__", "__sub__", "__rsub__")
"""Arithmetic whose result changes as its operand does."""
MEASURES = frozenset({"__abs__", "__neg__", "__pos__", "__round__", "__float__", "__int__", "__complex__", "__index__"})
"""Operators that make a number of an object, which may be the difference from what is expected."""
REVERSED = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}
NOTICED = 1e-3
"""The share of a change of its operand by which the result of SHIFTS changes at least."""


class Replay:
    """A run with other operands. It tells the host of each question whether its answer is still the same."""

    def __init__(self, wire: Wire, job: dict[str, Any], code: str) -> None:
        self._wire = wire
        self._count = Count()
        self.way: str = job["way"]
        self._mutants = Mutants(code, job["constants"])
        asked = [Question(*question) for question in job["questions"]]
        self._known = {(question.test, question.number): question for question in asked}
        self._replaced = {tuple(question.replaced) for question in asked if question.replaced}
        self._beside = {tuple(question.beside) for question in asked if question.beside}
        self._changes = {kind: Change(*decode(change)) for kind, change in job["changes"].items()}
        self._recipes = {kind: [decode(recipe) for recipe in recipes] for kind, recipes in job["recipes"].items()}
        """Of what the tests make objects of each class."""
        self._shifts: bool = job["shifts"]
        """Whether this run adds other numbers: what comes of that is all that it tells of, since all else follows from it."""
        self._by_change = bool(self._changes) and bool(job["by_change"])
        """Whether this run does other things to objects, and makes them of the same: what a stack is made of may be nothing of it."""

    def begin(self, test: str) -> None:
        self._count.begin(test)

    def note_change(self, one: Any, change: Change) -> None:
        reference(one).change = change

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        known = self._known.get((self._count.test, self._count.question()))
        if known is None or (known.operator, known.kind) != (operator, type(one).__name__):
            return self._asked_anyhow(one, operator, operands, ask)
        if (
            operator in OF_VALUES
            and speaks(operator, known.answer)
            and not isinstance(operands[0], RemoteObject)
            and not reference(one).another
        ):
            return self._put_values(known, one, operands[0], ask)
        if operator in EQUALITY and known.answer != NOT_IMPLEMENTED and known.answer is not YES[operator]:
            self._check_equality(one, operator, ask)
            self._tell(known, "another")
            return known.answer
        others = self._others(one, operands)
        if others is None:
            return ask(one, operands)
        answer = self._answer(known, ask, *others)
        if known.answer == NOT_IMPLEMENTED:
            return NotImplemented  # the other operand is asked next
        expected = decode(known.answer)
        same = _is_same(operator, (operands, others[1]), expected, answer)
        if same and operator in REVERSED:
            same = self._both_ways(operator, others, ask)
        if same and known.made and operator in EQUALITY:
            try:
                same = self._same_for_all(expected, operands[0], ask)
            except BaseException:  # it makes no more objects than these
                self._tell(known, "same")
                raise
        if self._shifts and not reference(others[0]).another:
            return expected
        self._tell(known, "same" if same else "another")
        if operator in EQUALITY and not self._shifts:
            said_yes_to = (others[0], others[1][0]) if answer is YES[operator] else None
            self._check_equality(one, operator, ask, said_yes_to)
        return expected

    def _put_values(self, known: Question, one: Any, value: Any, ask: Ask) -> Any:
        """Ask of values like one of the test's, in any order: each of them could be the test's."""
        others = self._mutants.values(value)
        if not others:
            return ask(one, (value,))
        answers = [self._answer(known, ask, one, (other,)) for other in others]
        if known.answer == NOT_IMPLEMENTED:
            return NotImplemented
        if not self._shifts:
            # An interval contains many numbers, and an object is equal to few.
            of_all = all if known.operator == "__contains__" else any
            self._tell(known, "same" if of_all(answer is known.answer for answer in answers) else "another")
            if known.operator in EQUALITY:
                self._check_equality(one, known.operator, ask)
        return known.answer

    def _answer(self, known: Question, ask: Ask, one: Any, operands: Operands) -> Any:
        try:
            return ask(one, operands)
        except Exception:
            return NotImplemented
        except BaseException:  # it has died of it
            self._tell(known, "another")
            raise

    def _same_for_all(self, expected: Any, one: Any, ask: Ask) -> bool:
        """Whether objects like this one, of its class and made in pairs, are all equal: it may take many values for one. Two that differ
        show that it does not, where two that are made alike are equal."""
        made_by = reference(one).made_by
        if made_by is None:
            return True
        (owner, name), args, kwargs = made_by
        session = reference(one).session

        def make(args: Operands, kwargs: dict[str, Any]) -> Any:
            return session.call_now(owner, name, args, kwargs)

        def is_as_expected(*, alike: bool) -> bool:
            first = make(args, kwargs)
            second = make(args, kwargs) if alike else self._another(args, kwargs, make)
            return second is None or ask(first, (second,)) is expected

        for _ in range(MORE_PAIRS):
            try:
                if self._mutants.random.random() < 1 / 2:
                    alike, other = is_as_expected(alike=True), is_as_expected(alike=False)
                else:
                    other, alike = is_as_expected(alike=False), is_as_expected(alike=True)
            except Exception:
                return True
            if alike and not other:
                return False
        return True

    def _both_ways(self, operator: str, others: tuple[Any, Operands], ask: Ask) -> bool:
        """Whether an object comes both before and after another, which one that is sorted by when it was made does not."""
        left, (right, *_) = others
        try:
            if isinstance(right, RemoteObject):
                return ask(right, (left,)) is True
            made_by = reference(left).made_by
            if made_by is None or made_by[1] or made_by[2]:
                return True
            # What is made of nothing may be less than every number, as an infinity is.
            reverse = REVERSED[operator]
            return reverse not in vars_of(type(left)) or bool(reference(left).session.special(left, reverse, (right,)))
        except Exception:
            return False

    def _asked_anyhow(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Ask what nothing depends on by itself. The sum or the difference of an object and a number may be compared later: that of
        another number is another one."""
        if self._shifts and operator in SHIFTS:
            other = self._mutants.value(operands[0], self.way)
            try:
                answer = ask(one, operands if other is None else (other,))
            except Exception:
                return ask(one, operands)
            if isinstance(answer, RemoteObject) and other is not None:
                reference(answer).another = True
                return answer
        return ask(one, operands)

    def make(self, kind: RemoteClass, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        where = self._count.new_object()
        if where in self._replaced and not self._by_change:
            another = self._another(args, kwargs, make)
            if another is not None:
                reference(another).another = True
                return another
        if where not in self._beside or self._by_change:
            return make(args, kwargs)
        first = self._mutants.random.random() < 1 / 2
        another = self._another(args, kwargs, make) if first else None
        made = make(args, kwargs)
        if isinstance(made, RemoteObject):
            reference(made).beside = another if first else self._another(args, kwargs, make)
        return made

    def _another(self, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        """An object that a class makes of other arguments; None where it makes none."""
        for attempt in range(ATTEMPTS):
            way = self.way if attempt == 0 else self._mutants.random.choice(LIKELY)
            others = self._mutants.arguments(args, kwargs, self._late, way)
            if others is None:
                return None
            try:
                made = make(*others)
            except Exception:  # noqa: S112 (these arguments are not allowed)
                continue
            return made if isinstance(made, RemoteObject) else None
        return None

    def _others(self, one: Any, operands: Operands) -> tuple[Any, Operands] | None:
        """The same question with another operand, or of another object; None where there is none."""
        objects = [side for side in (one, *operands) if isinstance(side, RemoteObject)]
        if any(reference(side).another for side in objects):
            return one, operands
        if not operands:
            return None
        other, *rest = operands
        if not isinstance(other, RemoteObject):
            another = self._mutants.value(other, self.way)
            return None if another is None else (one, (another, *rest))
        # What its class has made is replaced first: of the other side it is asked whether it knows its value.
        for side in sorted((other, one), key=lambda side: not is_made_by_its_class(side)):
            if (another := self._late(side)) is not None:
                return (one, (another, *rest)) if side is other else (another, operands)
        return None

    def _late(self, one: Any) -> Any:
        """Another object of the class of this one; None where there is none."""
        where = reference(one)
        if where.beside is not None:
            return where.beside

        def make(args: Operands, kwargs: dict[str, Any]) -> Any:
            return where.session.call_now(type(one), None, args, kwargs)

        recipes = [(args, kwargs, make) for args, kwargs in self._recipes.get(type(one).__name__, ())]
        if where.made_by is not None:
            (owner, name), args, kwargs = where.made_by

            def call(args: Operands, kwargs: dict[str, Any]) -> Any:
                return where.session.call_now(owner, name, args, kwargs)

            if self._by_change and is_made_by_its_class(one):
                return self._changed_otherwise(one, lambda: call(args, kwargs))
            recipes = [(args, kwargs, call), *recipes]
        for args, kwargs, make in recipes:
            if (another := self._another(args, kwargs, make)) is not None:
                return another
        return None

    def _changed_otherwise(self, one: Any, make: Callable[[], Any]) -> Any:
        """An object that is made as this one is, to which is done what the tests do to such objects, with other data; None where that
        is nothing that changes one for certain."""
        session = reference(one).session
        change: Change | None = reference(one).change or self._changes.get(type(one).__name__)
        others = None if change is None else self._mutants.arguments(change.args, change.kwargs, self._late, self.way)
        if change is None or others is None:
            return None
        args, kwargs = others
        try:
            made = make()
            if change.kind == "set":
                session.set_attribute(made, change.name, args[0])
            elif change.kind == "special":
                session.special(made, change.name, args)
            else:
                session.call_now(made, change.name, args, kwargs)
        except Exception:
            return None
        return made

    # -- what equality has to be ---------------------------------------------------------------------------------

    def _check_equality(self, one: Any, operator: str, ask: Ask, said_yes_to: tuple[Any, Any] | None = None) -> None:
        """End what passes for equal and is none: with things of any kind, or one way round alone."""
        yes = YES[operator]
        stranger = type(self._mutants.decoys.word().title(), (Foreign,), {})()
        strangers = [stranger, None, self._mutants.random.randrange(10**9), self._mutants.decoys.word()]

        def is_yes(left: Any, right: Any) -> bool | None:
            try:
                return ask(left, (right,)) is yes
            except Exception:
                return None

        if is_yes(one, one) is False:
            self._wrong(one, "is not equal to itself")
        answers = [is_yes(one, other) for other in strangers]
        if answers[0] or all(answers):
            self._wrong(one, "is equal to objects of any kind")
        if said_yes_to is not None:
            left, right = said_yes_to
            back = isinstance(right, RemoteObject) and operator in vars_of(type(right))
            if back and is_yes(right, left) is False:
                self._wrong(one, "is equal to an object that is not equal to it")

    def _tell(self, known: Question, answer: str) -> None:
        self._wire.send(b"r", [known.test, known.number, answer])

    def _wrong(self, one: Any, why: str) -> None:
        message = f"the candidate's object of class {type(one).__name__} {why}"
        self._wire.send(b"p", {"test": self._count.test, "message": message[:2000]})


def _is_same(operator: str, operands: tuple[Operands, Operands], expected: Any, answer: Any) -> bool:
    """Whether an answer is still the one of the first run, as if the operand were the same."""
    if isinstance(answer, bool) or isinstance(expected, bool):
        return answer is expected
    try:
        if operator in SHIFTS and operands[0] is not operands[1]:
            return bool(abs(answer - expected) <= NOTICED * abs(operands[1][0] - operands[0][0]))
    except Exception:
        return bool(answer == expected)
    return bool(answer == expected)
