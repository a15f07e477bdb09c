"""Comparisons run where they can be ended."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import IOTest, Status, Tokens
from agentrl.sandboxes.grading import apart
from agentrl.sandboxes.grading.answers import ExpectedOutput, ExpectedValue, raised
from agentrl.sandboxes.grading.apart import SHORT_BYTES, check_comparison, compare_answer
from tests.sandboxes.grading.hostile_answers import comparing

pytestmark = pytest.mark.anyio

IN_TIME = math.inf


@dataclass(frozen=True)
class Misbehaving:
    """A comparison of a user's own."""

    how: str = ""

    def __call__(self, output: str, expected: str) -> str:
        """Whatever it is told to do."""
        if self.how == "loop":
            while True:
                pass
        if self.how == "hoard":
            hoard = [bytearray(1 << 24)]
            while True:
                hoard.append(bytearray(hoard[-1]))
        if self.how == "raise":
            raise LookupError("not today")
        if self.how == "exit":
            sys.exit(3)
        print("noise")
        return "" if output == expected else f"not {expected}"


@pytest.mark.parametrize("padding", [0, SHORT_BYTES])
@pytest.mark.parametrize(("output", "status"), [("a b", Status.PASSED), ("a c", Status.WRONG_ANSWER)])
async def test_short_and_long_outputs_are_compared_alike(output: str, status: Status, padding: int) -> None:
    answer = (" " * padding + output).encode()
    said = await compare_answer(ExpectedOutput("a b", Tokens()), answer, IN_TIME)
    assert said == (status, "" if status is Status.PASSED else "word 2 is 'c', expected 'b'")


@pytest.mark.parametrize("filler", ["", "x" * SHORT_BYTES])
@pytest.mark.parametrize(
    ("value", "answer", "status"),
    [
        ([1.0], '{"ok": [1.0000001]}', Status.PASSED),
        ([1.0], '{"ok": [1.1]}', Status.WRONG_ANSWER),
        ([1.0], '{"ok": {"ref": [1, "C"]}}', Status.WRONG_ANSWER),
        ([1.0], '{"no": 1}', Status.WRONG_ANSWER),
        ([1.0], "[", Status.WRONG_ANSWER),
    ],
)
async def test_short_and_long_values_are_compared_alike(value: Any, answer: str, status: Status, filler: str) -> None:
    expectation = ExpectedValue([value, filler], tolerance=1e-6)
    content = answer.replace('{"ok": ', '{"ok": [').replace("}", f', "{filler}"]}}', 1) if "ok" in answer else answer
    if "ref" in answer:
        content = answer
    assert (await compare_answer(expectation, content.encode(), IN_TIME))[0] is status


async def test_a_comparison_of_the_users_own_runs_in_a_process() -> None:
    compare = Misbehaving()
    assert await compare_answer(ExpectedOutput("x", compare), b"x", IN_TIME) == (Status.PASSED, "")
    assert await compare_answer(ExpectedOutput("x", compare), b"y", IN_TIME) == (Status.WRONG_ANSWER, "not x")


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("loop", Status.WRONG_ANSWER, "the answer takes more than 1 s, or too much memory, to compare"),
        ("hoard", Status.WRONG_ANSWER, "the answer takes too much memory"),
        ("raise", Status.CHECKER_ERROR, "the comparison failed: LookupError: not today"),
        ("exit", Status.CHECKER_ERROR, "the process that compares ended with code 3"),
    ],
)
async def test_what_a_comparison_does_harms_nobody(
    how: str, status: Status, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "CPU_S", 1)
    assert await compare_answer(ExpectedOutput("x", Misbehaving(how)), b"x", IN_TIME) == (status, said)


@pytest.mark.soak
async def test_a_comparison_ends_with_the_deadline() -> None:
    started = anyio.current_time()
    status, message = await compare_answer(ExpectedOutput("x", Misbehaving("loop")), b"x", started + 0.5)
    assert status is Status.CHECKER_ERROR
    assert "deadline" in message
    assert anyio.current_time() - started < 9.5, "it may take 10 s of CPU time otherwise"


async def test_a_comparison_that_cannot_be_passed_on_is_refused() -> None:
    def nested(output: str, expected: str) -> str:
        return ""

    with pytest.raises(ConfigError, match="define it at the top of a module"):
        check_comparison(nested)
    check_comparison(IOTest().compare)  # type: ignore[arg-type]
    check_comparison(Misbehaving())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"ok": 1}', None),
        (b'{"raised": {"classes": ["KeyError", "Exception"], "text": "\'x\'"}}', "KeyError: 'x'"),
        (b'{"raised": {}}', "an exception"),
        (b'{"raised": ' + b"[" * 100_000, "an exception"),
    ],
)
def test_what_was_raised_is_read_with_bounds(answer: bytes, said: str | None) -> None:
    assert raised(answer) == said


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert list(comparing()) == []
