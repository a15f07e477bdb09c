"""Questions of test code that a candidate answers the same whatever is asked.

Which runs of the tests are needed to know, and which tests pass for nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from agentrl.sandboxes.inside.mutants import WAYS
from agentrl.sandboxes.inside.other_operands import MEASURES
from agentrl.sandboxes.inside.questions import NOT_IMPLEMENTED, ORDERS, Question

ALL_WAYS = (*WAYS, "constant")
ENOUGH = 3
"""So many runs with other operands must have had the same answer: a class may take two values for one."""
MOST_ALIKE = 0.6
"""An object that somebody else's data is compared with may be equal to this share of what a test may expect as well: half of it is
equal to a bit."""
DOUBTED = 0.4
"""One that is equal to more than this share is asked of SURELY others before that is said."""
SURELY = 60
RUNS_WITHOUT_ANSWERS = 2
"""A program that does not come to a test's questions in so many runs that are like the first has done otherwise there."""
MORE_RUNS = 12
"""So many runs more have a test whose program answers otherwise of what is made late, or of some values: that it answers the same of what is
made in the place of the test's own object may be chance."""
RUNS_IN_VAIN = 5
"""After so many runs in which no question that is open is asked with another operand, there is none."""
LONGEST_SOURCE = 100_000
"""Characters of a program that are looked through."""
MOST_CONSTANTS = 200

_LITERAL = re.compile(r"""'([^'\\\n]{0,40})'|"([^"\\\n]{0,40})"|\b(\d{1,9}(?:\.\d{1,9})?)\b""")


def constants(source: str) -> list[int | float | str]:
    """Return the texts and numbers in a program: a class that tells values from each other often says in its code which."""
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
        self._changing: set[tuple[str, str]] = set()
        self._nothing: set[tuple[str, str]] = set()
        """Questions where what was made in the place of an object is equal to that. What is made late shows more."""
        self._changing_late: set[tuple[str, str]] = set()
        self._for_some: set[tuple[str, str]] = set()
        """Questions about a value that some values like it answer otherwise."""
        self._looked: set[tuple[str, str, str]] = set()
        """Kinds of questions that were asked again beside others: the test, the class and the operator."""
        self._alike: Counter[tuple[str, str, str]] = Counter()
        self._of: Counter[tuple[str, str, str]] = Counter()
        self._changing_operators: set[tuple[str, str]] = set()
        self._in_vain = 0
        self._unanswered: Counter[tuple[str, str, str]] = Counter()
        self._sent: set[tuple[str, str, str]] = set()
        """The kinds of questions that the last run was to ask."""

    @property
    def open_tests(self) -> set[str]:
        """The tests of which a question is not settled yet."""
        return {test for test, number in self._asked if self._is_open((test, number))}

    @property
    def _doubtful_tests(self) -> set[str]:
        """The tests that would have passed for nothing, but for what was made late, or for some values alone."""
        doubtful = self._changing_late | self._for_some
        return {key[0] for key in doubtful if key in self._asked and not self._changes(key)}

    def runs(self) -> Iterator[dict[str, Any]]:
        """For each run that is needed, what it does: see `inside.replay`."""
        measures = any(
            question.operator in MEASURES or (question.shifted and question.operator in ORDERS)
            for question in self._asked.values()
        )
        ways = random.SystemRandom().sample(ALL_WAYS, len(ALL_WAYS))
        for number, way in enumerate([*ways, *random.SystemRandom().choices(ALL_WAYS, k=MORE_RUNS)]):
            more = number >= len(ways)
            tests = self._doubtful_tests if more else self.open_tests
            if not tests or self._in_vain >= RUNS_IN_VAIN:
                return
            questions = [question for question in self._asked.values() if question.test in tests]
            # Who is asked beside one question knows by the next that it is: at first any may be the first, and then each has its runs.
            start = random.SystemRandom().randrange(len(questions)) if number < 2 else 0
            questions = questions[start:]
            self._sent = {self._kind((question.test, question.number)) for question in questions}
            shifts = measures and number % 3 == 0 and not more
            aside = number % 4 >= 2
            keeps = number % 2 == 1 and not more
            yield {"way": way, "keeps": keeps, "aside": aside, "shifts": shifts, "questions": questions}

    def note(
        self, answers: Sequence[tuple[str, str, str]], looks: Sequence[tuple[str, str, int, int]], *, like_first: bool
    ) -> None:
        """Note the answers of a run, and which questions were asked beside others, with how many of those had the same answer.

        `like_first`: whether the run was like the first but for what was asked beside.
        """
        known = [key for key in [told[:2] for told in answers] + [told[:2] for told in looks] if key in self._asked]
        answered = {self._kind(key) for key in known}
        still_open = {self._kind(key) for key in self._asked if self._is_open(key)}
        for kind in (self._sent & still_open) - answered if like_first else ():
            self._unanswered[kind] += 1
        self._note_looks(looks)
        self._in_vain += 1
        for test, number, answer in answers:
            key = (test, number)
            if key not in self._asked:
                continue
            self._in_vain = 0
            if answer == "nothing":
                self._nothing.add(key)
            elif answer == "some":
                self._for_some.add(key)
            elif answer == "late another":
                self._changing_late.add(key)
            elif answer == "same" or (answer == "late same" and key in self._nothing):
                self._same[key] += 1
            elif answer == "another":
                self._changing.add(key)
                if self._is_of_all(key):
                    self._changing_operators.add(self._operator(key))

    def leave_out(self, tests: Collection[str]) -> None:
        """Ask no more for these tests, which are known to pass for nothing."""
        self._asked = {key: question for key, question in self._asked.items() if question.test not in tests}

    def _note_looks(self, looks: Sequence[tuple[str, str, int, int]]) -> None:
        for test, number, alike, of in looks:
            if (test, number) in self._asked:
                kind = self._kind((test, number))
                self._looked.add(kind)
                self._alike[kind] += alike
                self._of[kind] += of

    def passed_for_nothing(self) -> dict[str, str]:
        """Return the tests that pass for nothing, and why."""
        found = {
            test: "the candidate does otherwise when the test runs again"
            for (test, _, _), runs in self._unanswered.items()
            if runs >= RUNS_WITHOUT_ANSWERS
        }
        for key, question in self._asked.items():
            what = f"the candidate's {question.kind} answers {question.operator} the same whatever"
            if not self._changes(key) and self._same[key] >= ENOUGH:
                found[question.test] = f"{what} it is asked"
            kind = self._kind(key)
            if self._alike[kind] > MOST_ALIKE * self._of[kind]:
                found[question.test] = f"{what} it is asked that somebody may expect"
        return found

    def _kind(self, key: tuple[str, str]) -> tuple[str, str, str]:
        return key[0], *self._operator(key)

    def _operator(self, key: tuple[str, str]) -> tuple[str, str]:
        return self._asked[key].kind, self._asked[key].operator

    def _is_of_all(self, key: tuple[str, str]) -> bool:
        """Return whether what one answer shows of an operator holds for all like it.

        For orders, where what is sorted comes before half of all others, and for the equality of what its class made.
        """
        return self._asked[key].operator in ORDERS or self._asked[key].made

    def _is_open(self, key: tuple[str, str]) -> bool:
        kind = self._kind(key)
        doubted = self._alike[kind] > DOUBTED * self._of[kind] and self._of[kind] < SURELY
        settled = self._changes(key) and kind in self._looked and not doubted
        return self._asked[key].answer != NOT_IMPLEMENTED and not settled

    def _changes(self, key: tuple[str, str]) -> bool:
        """Return whether the answer is known to depend on what is asked."""
        known = self._is_of_all(key) and self._operator(key) in self._changing_operators
        question = self._asked[key]
        no = question.answer == NOT_IMPLEMENTED or (question.operator in ORDERS and question.answer is False)
        late = key in self._nothing and key in self._changing_late
        return key in self._changing or late or known or no
