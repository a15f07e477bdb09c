"""What equality and order have to be: of an object that has said yes, in a run of the tests with other operands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentrl.sandboxes.inside.changes import snapshot
from agentrl.sandboxes.inside.foreign import Foreign
from agentrl.sandboxes.inside.mutants import LIKELY, WAYS, Mutants
from agentrl.sandboxes.inside.other_objects import OtherObjects
from agentrl.sandboxes.inside.questions import ORDERS, YES, Ask, Operands, Question
from agentrl.sandboxes.inside.stand_ins import RemoteObject, reference, vars_of

MORE_PAIRS = 16
"""So many more are made where one object that a class has made is equal to another."""
REVERSED = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}


class Laws:
    """Asks about them, and tells of who breaks one."""

    def __init__(self, mutants: Mutants, objects: OtherObjects, wrong: Callable[[Any, str], None]) -> None:
        self._mutants = mutants
        self._objects = objects
        self._wrong = wrong

    def check_equality(self, one: Any, operator: str, ask: Ask, said_yes_to: tuple[Any, Any] | None = None) -> None:
        """End what passes for equal and is none: with things of any kind, or one way round alone."""
        yes = YES[operator]
        stranger = type(self._mutants.decoys.word().title(), (Foreign,), {})()
        strangers = [stranger, None, self._mutants.random.randrange(10**9), self._mutants.decoys.word()]

        def is_yes(left: Any, right: Any) -> bool | None:
            try:
                return ask(left, (right,)) is yes
            except Exception:
                return None

        # What was made of other arguments, such as a tolerance below 0, may be equal to nothing.
        if not reference(one).another and is_yes(one, one) is False:
            self._wrong(one, "is not equal to itself")
        answers = [is_yes(one, other) for other in strangers]
        if answers[0] or all(answers):
            self._wrong(one, "is equal to objects of any kind")
        if said_yes_to is not None:
            left, right = said_yes_to
            back = isinstance(right, RemoteObject) and operator in vars_of(type(right))
            if back and is_yes(right, left) is False:
                self._wrong(one, "is equal to an object that is not equal to it")

    def check_opposite(self, known: Question, asked: list[tuple[tuple[Any, Operands], Any]]) -> None:
        """End what is equal and not equal, or neither; and what is less than another that is not greater."""
        opposite = {"__eq__": "__ne__", "__ne__": "__eq__"}.get(known.operator, "")
        for (one, operands), answer in asked:
            other = operands[0] if operands else None
            with suppress(Exception):
                if opposite in vars_of(type(one)) and isinstance(answer, bool):
                    if reference(one).session.special(one, opposite, operands) is answer:
                        self._wrong(one, f"answers {known.operator} and {opposite} alike")
                elif known.operator in ORDERS and isinstance(other, RemoteObject) and isinstance(answer, bool):
                    back = REVERSED[known.operator]
                    has_back = back in vars_of(type(other))
                    if has_back and reference(one).session.special(other, back, (one,)) is (not answer):
                        self._wrong(one, f"answers {known.operator} one way, and {back} the other")

    def answer_reversed(self, known: Question, one: Any, operands: Operands) -> Any:
        """Ask whether the other comes first, which it does not: who learns an order from what is asked has then learned another."""
        other = operands[0] if operands else None
        if known.operator in REVERSED and isinstance(other, RemoteObject) and known.operator in vars_of(type(other)):
            with suppress(Exception):
                return reference(one).session.special(other, known.operator, (one,))
        return None

    def both_ways(self, operator: str, others: tuple[Any, Operands], ask: Ask) -> bool:
        """Return whether an object comes both before and after another, which one that is sorted by when it was made does not."""
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

    def same_for_all(self, expected: Any, one: Any, ask: Ask) -> bool:
        """Return whether objects like this one, of its class and made in pairs, are all equal: it may take many values for one.

        Two that differ show that it does not, where two that are made alike are equal.
        """
        made_by = reference(one).made_by
        if made_by is None:
            return True
        (owner, name), args, kwargs = made_by
        session = reference(one).session

        def make(args: Operands, kwargs: dict[str, Any]) -> Any:
            return session.call_now(owner, name, *snapshot((args, kwargs)))

        def is_as_expected(*, alike: bool) -> bool:
            first = make(args, kwargs)
            way = self._mutants.random.choice((*WAYS, *LIKELY, "constant", "constant"))
            second = make(args, kwargs) if alike else self._objects.another(args, kwargs, make, way)
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
