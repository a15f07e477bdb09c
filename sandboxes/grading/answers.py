"""Compare what a candidate answered with what is expected: bytes that it chose, read with bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from agentrl.concurrency.threads import in_thread
from agentrl.sandboxes.grading.comparison import Compare, same_value
from agentrl.sandboxes.grading.verdict import Status
from agentrl.sandboxes.inside.answer_bounds import Bounds, OutOfBoundsError, check_bounds
from agentrl.sandboxes.inside.plain_data import MOST_ITEMS, NotPlainError
from agentrl.sandboxes.inside.plain_decoding import decode, decode_and_count
from agentrl.sandboxes.inside.plain_encoding import encode

SHOWN_CHARACTERS = 2000
LONGER = 64
"""So many times the bytes of the expected value another one may take that is equal to it: 1 and 1.0000000000000002."""


class Expectation(Protocol):
    """What an answer should be."""

    @property
    def size(self) -> int:
        """Bytes, or characters, of all that is expected."""
        ...

    def difference(self, answer: bytes) -> str:
        """Return "" when the answer is right, else what is wrong with it.

        Raises:
            OutOfBoundsError: The answer is too large.
        """
        ...


@dataclass(frozen=True)
class ExpectedOutput:
    """What a program should print."""

    stdout: str
    compare: Compare

    @property
    def size(self) -> int:
        """Characters."""
        return len(self.stdout)

    def difference(self, answer: bytes) -> str:
        """Return what the comparison says.

        Raises:
            TypeError: A comparison returned something else than a text.
        """
        said = self.compare(answer.decode(errors="replace"), self.stdout)
        if not isinstance(said, str):
            raise TypeError(f"compare returned {said!r}; it returns what differs, and '' where nothing does")
        return said


GRADED = -1
"""The number by which the candidate's process knows an argument that is graded in place of the value."""


@dataclass(frozen=True)
class ExpectedValue:
    """What a call should return, or make of its argument with the index `argument`, of which `argument_before` was the value."""

    value: Any
    tolerance: float | None = None
    nan_equal: bool = False
    wrapped: bool = False
    argument: int | None = None
    argument_before: Any = None

    @cached_property
    def size(self) -> int:
        """Bytes as JSON, or items if those are more: a list that is in it many times is written once."""
        data = [encode(self.value), encode(self.argument_before)]
        return max(len(json.dumps(data)), decode_and_count(data)[1])

    def difference(self, answer: bytes) -> str:
        """Return the two values, or why the answer is none. An answer is read only if it is small enough to be right.

        Raises:
            ValueError: The answer makes no sense.
        """
        largest = Bounds()
        length, items = LONGER * self.size + 4096, 2 * self.size + 256
        check_bounds(answer, Bounds(min(length, largest.length), min(items, largest.items)))
        most_items = min(items, MOST_ITEMS)
        try:
            content = json.loads(answer)
            if "fault" in content:
                raise ValueError(content["fault"])
            if self.argument is None:
                got = decode(content["ok"], _content, most_items=most_items)
            else:
                changed = dict(content.get("changed", ()))
                known = GRADED not in changed
                got = self.argument_before if known else decode(changed[GRADED], _content, most_items=most_items)
        except (NotPlainError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return f"the answer is not plain data: {error}"
        try:
            if same_value(got, self.value, self.tolerance, nan_equal=self.nan_equal, wrapped=self.wrapped):
                return ""
        except (ArithmeticError, TypeError, ValueError) as error:  # numbers that refuse to be compared
            return f"{_shown(got)} cannot be compared with {_shown(self.value)}: {error}"
        return f"{_shown(got)}, expected {_shown(self.value)}"


def _content(part: Any) -> Any:
    """Return a container in the argument that is graded."""
    return part["item"][2]


def difference(expectation: Expectation, answer: bytes) -> str:
    """Return "" when the answer is what is expected, else what is wrong with it, in SHOWN_CHARACTERS at most."""
    try:
        return expectation.difference(answer)[:SHOWN_CHARACTERS]
    except OutOfBoundsError as error:
        return str(error)
    except RecursionError:
        return "the answer is nested too deep"
    except MemoryError:
        return "the answer takes too much memory"


def raised(answer: bytes) -> str | None:
    """Return what the candidate raised, as text; None when it did not, or when the answer makes no sense."""
    if not answer.startswith(b'{"raised"'):
        return None
    try:
        check_bounds(answer, Bounds(length=1 << 17, items=4096))
        content = json.loads(answer)["raised"]
        return f"{content['classes'][0]}: {content['text']}"[:SHOWN_CHARACTERS]
    except (OutOfBoundsError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return "an exception"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


async def compare_answer(expectation: Expectation, answer: bytes, deadline: float) -> tuple[Status, str]:
    """Return whether an answer is what is expected, and if not, why. `deadline` is a time of the event loop's clock."""
    try:
        said = await in_thread(difference, expectation, answer)
    except Exception as error:  # of a comparison of the user's own
        return Status.CHECKER_ERROR, f"the comparison failed: {type(error).__name__}: {error}"[:SHOWN_CHARACTERS]
    return (Status.WRONG_ANSWER, said) if said else (Status.PASSED, "")
