"""A run of the tests again, in new processes, in which what they ask has other operands.

    the first run                               this one
    assert V(1) + V(2) == V(3)                  V(1) + V(2) == V(8)
    assert circle.area() - 78.54 < 1e-6         circle.area() - 23.91

No program can tell it from a first run: it has no memory of another, and meets a test that somebody could have written. So who says
yes to this one too says yes to anything. The test itself goes on with the answers of the first run, and so asks the same.

Some of these runs keep the tests' own objects, and ask more beside the other question: the tests' own, which has to have its answer of the
first run, after its reverse, and everything twice. Who answers at random, or learns from what is asked, contradicts itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from agentrl.sandboxes.inside.changes import snapshot
from agentrl.sandboxes.inside.laws import REVERSED, Laws
from agentrl.sandboxes.inside.mutants import PLAUSIBLE, WAYS, Mutants
from agentrl.sandboxes.inside.other_objects import OtherObjects
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.questions import (
    ANOTHER_HASH,
    COLLECTIONS,
    EQUALITY,
    GATHERING,
    MOST_HASHES,
    NOT_IMPLEMENTED,
    ORDERS,
    SEARCHES,
    YES,
    Ask,
    Change,
    Count,
    Make,
    Operands,
    Question,
    class_name,
    is_made_by_its_class,
    with_hashes,
)
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference
from agentrl.sandboxes.inside.wire import TestEndedError, Wire

SHIFTS = ("__add__", "__radd__", "__sub__", "__rsub__")
"""Arithmetic whose result changes as its operand does."""
MEASURES = frozenset(
    {
        "__abs__",
        "__neg__",
        "__pos__",
        "__round__",
        "__float__",
        "__int__",
        "__complex__",
        "__index__",
        "__bool__",
        "__len__",
    }
)
"""Operators that make plain data of an object, which may be the difference from what is expected."""
RATIOS = tuple(f"__{side}{name}__" for name in ("truediv", "floordiv", "mod", "divmod") for side in ("", "r"))
NOTICED = 0.02
"""The share of a change of its operand by which the result of SHIFTS changes at least."""
MANY_LOOKS = 3
"""So many questions of each kind in a test are asked again beside MOST_BESIDE others, more of them beside FEW_BESIDE."""
MOST_LOOKS = 30
MOST_BESIDE = 12
FEW_BESIDE = 2
LONGEST_LOOK_S = 0.3
"""So long others are made to ask beside: an object may take a second to make."""
BESIDE = 0.5
"""A float is beside another that is nearer to it than this."""


class Replay:
    """A run with other operands. It tells the host of each question whether its answer is still the same."""

    def __init__(self, wire: Wire, job: dict[str, Any], code: str) -> None:
        self._wire = wire
        self._count = Count()
        self._mutants = Mutants(code, job["constants"])
        self._objects = OtherObjects(job, self._mutants)
        self._laws = Laws(self._mutants, self._objects, self._wrong)
        asked = [Question(*question) for question in job["questions"]]
        self._known = {(question.test, question.number): question for question in asked}
        self._replaced = {tuple(question.replaced) for question in asked if question.replaced}
        self._beside = {tuple(question.beside) for question in asked if question.beside}
        self._shifts: bool = job["shifts"]
        """Whether this run adds and subtracts other numbers. It tells of nothing else, since all else follows from that."""
        self._keeps: bool = job["keeps"]
        """Whether the tests' own objects are made, and another only when it is asked about."""
        self._aside: bool = job["aside"]
        """Whether an object that the test has made is replaced, and not what it is asked with: `cart.total() - 5` of an empty cart is 0
        whatever is subtracted, so other carts are asked."""
        self._looks: Counter[tuple[str, str]] = Counter()

    def begin(self, test: str) -> None:
        """Begin a test."""
        self._count.begin(test)
        self._looks.clear()

    def note_change(self, one: Any, change: Change) -> None:
        """Note that the test has changed an object."""
        reference(one).change = change

    def put(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Put a question to an object, and return its answer."""
        times, number = self._count.question(one, operator)
        if operator in EQUALITY and times <= MOST_HASHES:
            ask = with_hashes(ask, YES[operator], lambda one: self._wrong(one, ANOTHER_HASH))
        known = self._known.get((self._count.test, number))
        if known is None:
            return self._asked_anyhow(one, operator, operands, ask)
        if operator in EQUALITY and known.answer != NOT_IMPLEMENTED and known.answer is not YES[operator]:
            self._laws.check_equality(one, operator, ask)
            self._tell(known, "another")
            self._look_again(known, one, operands, ask, [])
            return known.answer
        if operator in REVERSED and known.answer is False:
            self._look_again(known, one, operands, ask, [])
            return False
        if asides := self._asides_of(one, operator):
            expected = decode(known.answer)
            answers = [self._answer(known, ask, other, operands) for other in asides]
            same = all(_is_same(operator, (operands, operands), expected, answer) for answer in answers)
            self._tell(known, "same" if same else "another")
            return expected
        had_beside = any(reference(side).beside for side in operands if isinstance(side, RemoteObject))
        others = self._others(one, operands, self._objects.way)
        if others is None:
            if known.answer != NOT_IMPLEMENTED:
                self._look_again(known, one, operands, ask, [])
            return ask(one, operands)
        answer = self._answer(known, ask, *others)
        if known.answer == NOT_IMPLEMENTED:
            return NotImplemented  # the other operand is asked next
        expected = decode(known.answer)
        same = _is_same(operator, (operands, others[1]), expected, answer)
        of_value = others[1] is not operands and not isinstance(operands[0], RemoteObject)
        if of_value and operator in (*EQUALITY, "__contains__"):
            same = self._is_same_for_values(known, one, operands[0], ask, same=same)
        if same and operator in REVERSED:
            same = self._laws.both_ways(operator, others, ask)
        if same and known.made and operator in EQUALITY:
            try:
                same = self._laws.same_for_all(expected, operands[0], ask)
            except BaseException:  # it makes no more objects than these
                self._tell(known, "same")
                raise
        if self._shifts and not reference(others[0]).another:
            return expected
        # What is made late shows nothing of a program that knows what is made in the place of an object.
        in_place = had_beside or (others[0] is one and others[1] is operands)
        late = (known.replaced or known.beside) and not in_place and not self._objects.by_change
        # Whether the difference from a number is small depends on the number, and not on how small alone.
        late = late or (operator in ORDERS and reference(one).shifted and not self._shifts)
        if same and in_place and not known.made and self._says_nothing(one, operands, ask, expected):
            self._tell(known, "nothing")
        else:
            self._tell(known, ("late " if late else "") + ("same" if same else "another"))
        if not self._shifts:
            self._look_again(known, one, operands, ask, [(others, answer)])
        if operator in EQUALITY and not self._shifts:
            said_yes_to = (others[0], others[1][0]) if answer is YES[operator] else None
            self._laws.check_equality(one, operator, ask, said_yes_to)
        return expected

    def _look_again(
        self, known: Question, one: Any, operands: Operands, ask: Ask, asked: list[tuple[tuple[Any, Operands], Any]]
    ) -> None:
        """Ask the test's own question among others like it, of which some are `asked` already, and all of them twice.

        A program whose answers depend on what was asked before has no answer.
        """
        if any(reference(side).another for side in (one, *operands) if isinstance(side, RemoteObject)):
            return
        kind = (known.kind, known.operator)
        self._looks[kind] += 1
        if self._looks[kind] > MOST_LOOKS:
            return
        expected = decode(known.answer)
        comes_first = self._laws.answer_reversed(known, one, operands)
        answers = list(asked)
        guesses = []
        count = MOST_BESIDE if self._looks[kind] <= MANY_LOOKS else FEW_BESIDE
        own_place = self._mutants.random.randrange(count + 1)
        until = time.monotonic() + LONGEST_LOOK_S
        for place in range(count + 1):
            if place == own_place:
                own = self._answer(known, ask, one, operands)
                answers.append(((one, operands), own))
                if isinstance(expected, bool) and own is not expected:
                    self._wrong(one, f"answers {known.operator} otherwise in another run")
            elif time.monotonic() < until:
                other = self._others(one, operands, self._mutants.random.choice(PLAUSIBLE))
                if other is not None:
                    guesses.append((other, self._answer(known, ask, *other)))
                    answers.append(guesses[-1])
        if expected is True and comes_first is True and known.operator in ("__lt__", "__gt__"):
            self._wrong(one, f"answers {known.operator} the same both ways round")
        self._laws.check_opposite(known, answers)
        self._mutants.random.shuffle(answers)
        for question, answer in answers:
            if _told(self._answer(known, ask, *question)) != _told(answer):
                self._wrong(one, f"answers {known.operator} otherwise when it is asked again")
                break
        counted = guesses if self._is_guessed(known, one, expected) else []
        alike = sum(_is_same(known.operator, (operands, other), expected, answer) for (_, other), answer in counted)
        self._wire.send(b"l", [known.test, known.number, alike, len(counted)])

    def _is_guessed(self, known: Question, one: Any, expected: Any) -> bool:
        """Return whether an answer that is right for most of what somebody may expect is no answer.

        Not where an object that the test has made takes many values for one, or has a floor.
        """
        if known.operator in EQUALITY:
            return not known.made and expected is YES[known.operator]
        return known.operator in (*SHIFTS, *RATIOS, *SEARCHES) and not is_made_by_its_class(one)

    def _says_nothing(self, one: Any, operands: Operands, ask: Ask, expected: Any) -> bool:
        """Return whether what is in the place of the test's own object is equal to that one: a function may make the same of many arguments."""
        for side in (one, *operands):
            instead_of = reference(side).instead_of if isinstance(side, RemoteObject) else None
            if instead_of is not None and not is_made_by_its_class(side):
                with suppress(Exception):
                    instead_of()  # a cheat that is equal to whatever is made next has met that
                    return ask(side, (instead_of(),)) is expected
        return False

    def _is_same_for_values(self, known: Question, one: Any, value: Any, ask: Ask, *, same: bool) -> bool:
        """Return whether an object is equal to any of values like one of the test's, each of which could be the test's.

        Or contains all of them, since an interval contains many.
        """
        others = [self._mutants.value(value, way) for way in self._mutants.random.sample(WAYS, len(WAYS))]
        expected = decode(known.answer)
        others = [other for other in others if other is not None and not _is_beside(value, other)]
        answers = [self._answer(known, ask, one, (other,)) is expected for other in others]
        if not all(answers):
            self._tell(known, "some")
        if known.operator == "__contains__":
            return same and all(answers)
        return same or any(answers)

    def _asides_of(self, one: Any, operator: str) -> list[Any]:
        """Objects that are made as this one is, of other arguments: where little is nothing, as of a sum that has a floor, much is something."""
        kept = operator in EQUALITY or operator in REVERSED
        where = reference(one)
        used = where.another or where.called or where.change is not None
        if not self._aside or self._shifts or kept or used or not is_made_by_its_class(one):
            return []
        return [other for way in WAYS if (other := self._objects.late(one, way)) is not None]

    def _answer(self, known: Question, ask: Ask, one: Any, operands: Operands) -> Any:
        try:
            return ask(one, operands)
        except Exception:
            return NotImplemented
        except TestEndedError as error:
            if error.exited:
                self._wrong(one, "ends its process in another run")
            raise

    def _asked_anyhow(self, one: Any, operator: str, operands: Operands, ask: Ask) -> Any:
        """Ask what nothing depends on by itself.

        The sum or the difference of an object and a number may be compared later: that of another number is another one.
        """
        if self._shifts and (operator in SHIFTS or operator in GATHERING):
            remote = isinstance(operands[0], RemoteObject)
            other = self._objects.late(operands[0]) if remote else self._mutants.value(operands[0], self._objects.way)
            try:
                answer = ask(one, operands if other is None else (other,))
            except Exception:
                return ask(one, operands)
            if isinstance(answer, RemoteObject) and other is not None:
                reference(answer).another = True
                return answer
        return ask(one, operands)

    def make(self, kind: RemoteClass | None, args: Operands, kwargs: dict[str, Any], make: Make) -> Any:
        """Have an object made by its class, or by a function."""
        where = self._count.call()
        if where in self._replaced and not self._keeps:
            another = self._objects.another(args, kwargs, make)
            if another is not None:
                reference(another).another = True
                reference(another).instead_of = lambda: make(*snapshot((args, kwargs)))
                return another
        if where not in self._beside or self._objects.by_change:
            return make(args, kwargs)
        # Before it and after it: who is equal to what is made next, or to what was made last, is then equal to another.
        before = self._objects.another(args, kwargs, make)
        made = make(args, kwargs)
        after = self._objects.another(args, kwargs, make)
        if isinstance(made, RemoteObject):
            reference(made).beside = [other for other in (before, after) if other is not None]
            self._mutants.random.shuffle(reference(made).beside)
        return made

    def _others(self, one: Any, operands: Operands, way: str) -> tuple[Any, Operands] | None:
        """Return the same question with another operand, or of another object; None where there is none."""
        objects = [side for side in (one, *operands) if isinstance(side, RemoteObject)]
        if any(reference(side).another for side in objects):
            return one, operands
        if not operands:
            return None
        other, *rest = operands
        if not isinstance(other, RemoteObject):
            another = self._mutants.value(other, way)
            return None if another is None else (one, (another, *rest))
        # What its class has made is replaced first: of the other side it is asked whether it knows its value.
        for side in sorted((other, one), key=lambda side: not is_made_by_its_class(side)):
            if (another := self._objects.late(side, way)) is not None:
                return (one, (another, *rest)) if side is other else (another, operands)
        return None

    def _tell(self, known: Question, answer: str) -> None:
        self._wire.send(b"r", [known.test, known.number, answer])

    def _wrong(self, one: Any, why: str) -> None:
        message = f"the candidate's object of class {class_name(one)} {why}"
        self._wire.send(b"p", {"test": self._count.test, "message": message[:2000]})


def _is_beside(value: Any, other: Any) -> bool:
    """Return whether a number is so near to another that a class which compares with a tolerance may take it for that."""
    return isinstance(value, float) and isinstance(other, float) and abs(value - other) < BESIDE


def _told(answer: Any) -> str:
    """Return an answer that is plain data, to compare with another; "" for any other."""
    try:
        return json.dumps(encode(answer))
    except NotPlainError:
        return ""


def _is_same(operator: str, operands: tuple[Operands, Operands], expected: Any, answer: Any) -> bool:
    """Return whether an answer is still the one of the first run, as if the operand were the same."""
    if isinstance(answer, bool) or isinstance(expected, bool):
        return answer is expected
    if operator in GATHERING and isinstance(expected, COLLECTIONS if operator in SHIFTS else (*COLLECTIONS, int)):
        return bool(answer == (operands[1][0] if expected == operands[0][0] else expected))
    try:
        if operator in SHIFTS and operands[0] is not operands[1]:
            return bool(abs(answer - expected) <= NOTICED * abs(operands[1][0] - operands[0][0]))
    except Exception:
        return bool(answer == expected)
    return bool(answer == expected)
