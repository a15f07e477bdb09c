"""Questions of test code that a candidate answers the same whatever is asked: which runs of the tests are needed to know, and which tests
pass for nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.sandboxes.inside.mutants import WAYS
from agentrl.sandboxes.inside.questions import NOT_IMPLEMENTED, Question
from agentrl.sandboxes.inside.replay import MEASURES

ALL_WAYS = (*WAYS, "constant")
ENOUGH = 3
"""So many runs with other operands must have had the same answer: a class may take two values for one."""
RUNS_IN_VAIN = 3
"""After so many runs in which no question that is open is asked with another operand, there is none."""
LONGEST_SOURCE = 100_000
"""Characters of a program that are looked through."""
MOST_CONSTANTS = 200
ORDERS = ("__lt__", "__le__", "__gt__", "__ge__")
"""Operators of which some answer must change, and not each: what is sorted comes before half of all others."""


_LITERAL = re.compile(r"""'([^'\\\n]{0,40})'|"([^"\\\n]{0,40})"|\b(\d{1,9}(?:\.\d{1,9})?)\b""")


def constants(source: str) -> list[int | float | str]:
    """The texts and numbers in a program: a class that tells values from each other often says in its code which."""
    found: dict[int | float | str, None] = {}
    for single, double, number in _LITERAL.findall(source[:LONGEST_SOURCE]):
        value = float(number) if "." in number else int(number) if number else single or double
        found[value] = None
        if len(found) == MOST_CONSTANTS:
            break
    return list(found)


class Questions:
    """The questions of one run of the tests."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self._asked = {(question.test, question.number): question for question in asked}
        self._same = dict.fromkeys(self._asked, 0)
        self._changing: set[tuple[str, int]] = set()
        self._changing_operators: set[tuple[str, str]] = set()
        self._in_vain = 0

    @property
    def open_tests(self) -> set[str]:
        """The tests that have asked these."""
        return {test for test, number in self._asked if self._is_open((test, number))}

    def runs(self) -> Iterator[dict[str, Any]]:
        """For each run that is needed, what it does: see `inside.replay`."""
        measures = any(question.operator in MEASURES for question in self._asked.values())
        for number, way in enumerate(random.SystemRandom().sample(ALL_WAYS, len(ALL_WAYS))):
            if not self.open_tests or self._in_vain >= RUNS_IN_VAIN:
                return
            tests = self.open_tests
            questions = [question for question in self._asked.values() if question.test in tests]
            shifts = measures and number % 3 == 2
            yield {"way": way, "by_change": number % 2 == 1, "shifts": shifts, "questions": questions}

    def note(self, answers: Sequence[tuple[str, int, str]]) -> None:
        """Note the answers of a run."""
        self._in_vain += 1
        for test, number, answer in answers:
            key = (test, number)
            if key not in self._asked:
                continue
            self._in_vain = 0
            if answer == "same":
                self._same[key] += 1
            else:
                self._changing.add(key)
                if self._is_of_all(key):
                    self._changing_operators.add(self._operator(key))

    def same_whatever_is_asked(self) -> dict[str, str]:
        """The tests that pass for nothing, and why."""
        found = {}
        for key, question in self._asked.items():
            if self._is_open(key) and self._same[key] >= ENOUGH:
                what = f"the candidate's {question.kind} answers {question.operator}"
                found[question.test] = f"{what} the same whatever it is asked"
        return found

    def _operator(self, key: tuple[str, int]) -> tuple[str, str]:
        return self._asked[key].kind, self._asked[key].operator

    def _is_of_all(self, key: tuple[str, int]) -> bool:
        """Whether what one answer shows of an operator holds for all like it: for orders, and for the equality of what its class made."""
        return self._asked[key].operator in ORDERS or self._asked[key].made

    def _is_open(self, key: tuple[str, int]) -> bool:
        known = self._is_of_all(key) and self._operator(key) in self._changing_operators
        return self._asked[key].answer != NOT_IMPLEMENTED and key not in self._changing and not known
