"""The result of each test, and of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.sandbox import EndReason, ExecResult

MAX_TEXT_CHARACTERS = 10_000
"""Of a message, a name, or what a build printed."""
SHOWN_CHARACTERS = 2000
"""Of what a program printed last."""
LISTED_TESTS, LISTED_CHARACTERS = 200, 20_000
"""How many tests a verdict lists as JSON, and how many characters their names, or their messages, have together."""
DEADLINE_OVER = "the verdict's deadline was over"
EARLIER_FAILED = "an earlier test failed"

Baseline = Sequence[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]]
"""The share of each test that a program passes by doing nothing, as `agentrl vet` measures it: `[1.0, 0.0]`."""


def shown_text(text: str) -> str:
    """Text of a program's that every file, database and terminal takes: bounded, without NUL and without halves of surrogate pairs."""
    text = text[:MAX_TEXT_CHARACTERS].replace("\0", "\\x00")
    return text.encode(errors="backslashreplace").decode()


class Status(StrEnum):
    """The outcome of one test."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    BUILD_ERROR = "build_error"
    CRASHED = "crashed"
    """The program took its sandbox down, every time."""
    CHECKER_ERROR = "checker_error"
    """The checker, or the test code, failed by itself: no fault of the program's, and no pass."""
    DEADLINE = "deadline"
    """The verdict's deadline was over, though no test had exceeded its own time: no fault of the program's, and no pass."""
    NOT_RUN = "not_run"
    """An earlier test failed, and the grader was to fail fast; or tests that exceeded their time had used up the verdict's."""


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """The result of one test. `message` may quote what was expected: show it to the model for public tests only."""

    __test__ = False

    name: str
    status: Status
    message: str = ""
    duration_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    test_index: int = 0
    """Index of the test in the list that was graded; a file's tests share one."""
    trust: Trust = Trust.OUTSIDE
    """How the test was graded, and so what its pass means."""

    def __post_init__(self) -> None:
        for name in ("name", "message"):
            object.__setattr__(self, name, shown_text(getattr(self, name)))

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.status is Status.PASSED


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The results of all tests, in their order."""

    results: tuple[TestResult, ...]
    build_output: str = ""
    fraction: float | None = None
    """A partial reward, `credit` over the baseline of the task. None where it was not asked for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "build_output", shown_text(self.build_output))

    @property
    def passed(self) -> bool:
        """Whether there was a test, and all passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def reward(self) -> float:
        """The fraction, where it was asked for; else 1 where all passed, and 0 where not."""
        return float(self.passed) if self.fraction is None else self.fraction

    @property
    def trust(self) -> Trust:
        """The least trust of its results."""
        return min((result.trust for result in self.results), key=[*Trust].index, default=Trust.OUTSIDE)

    @property
    def pass_rate(self) -> float:
        """The share of tests that passed; 0 without any. To look at, and no reward: a program that does nothing may pass some."""
        return sum(result.passed for result in self.results) / len(self.results) if self.results else 0.0

    @property
    def fault(self) -> TestResult | None:
        """The first result that is no fault of the program's, and so says nothing of it; None where there is none."""
        return next((one for one in self.results if one.status in (Status.CHECKER_ERROR, Status.DEADLINE)), None)

    @property
    def status(self) -> Status:
        """The status of the first test that did not pass."""
        if not self.results:
            return Status.NOT_RUN
        return next((result.status for result in self.results if not result.passed), Status.PASSED)

    def to_json(self) -> dict[str, Any]:
        """Return what people look at as JSON, for the details of a reward: of up to `LISTED_TESTS` tests, their texts cut to fit."""
        listed = self.results[:LISTED_TESTS]
        size = LISTED_CHARACTERS // max(1, len(listed))
        return {
            "passed": sum(result.passed for result in self.results),
            "of": len(self.results),
            "trust": self.trust,
            "tests": [{"name": r.name[:size], "passed": r.passed, "message": r.message[:size]} for r in listed],
            "output": self.build_output[: 2 * SHOWN_CHARACTERS],
        }

    def shares(self, count: int) -> list[float]:
        """Return the share of each of `count` tests that passed: of a file, the share of its functions and their parameters."""
        passed = [[result.passed for result in self.results if result.test_index == index] for index in range(count)]
        return [sum(one) / len(one) for one in passed]

    def credit(self, baseline: Baseline) -> float:
        """Return a partial reward: Σ max(0, passed − free) / Σ (1 − free) over the tests; 0 where nothing is left to earn."""
        pairs = zip(self.shares(len(baseline)), baseline, strict=True)
        return sum(max(0.0, passed - free) for passed, free in pairs) / (sum(1 - free for free in baseline) or 1)


def check_baseline(name: str, baseline: object, count: int) -> None:
    """Check the baseline of so many tests, where there is one.

    Raises:
        ConfigError: It is no list of shares, or of other tests.
    """
    check_argument(name, baseline, Baseline | None)
    if isinstance(baseline, Sequence) and len(baseline) != count:
        raise ConfigError(f"{name} is of {len(baseline)} tests, and there are {count}; vet the task again")


_STATUS_OF_END = {
    EndReason.TIMEOUT: Status.TIME_LIMIT,
    EndReason.OUT_OF_MEMORY: Status.MEMORY_LIMIT,
    EndReason.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
}


def status_of(done: ExecResult) -> tuple[Status, str]:
    """Return what a run's end alone says: PASSED when it ended by itself with exit code 0."""
    if done.ok:
        return Status.PASSED, ""
    if done.end_reason in _STATUS_OF_END:
        return _STATUS_OF_END[done.end_reason], ""
    how = f"signal {done.signal}" if done.end_reason is EndReason.SIGNAL else f"exit code {done.exit_code}"
    return Status.RUNTIME_ERROR, tail(done.stderr) or how


def tail(output: bytes) -> str:
    """Return the end of some output, to show."""
    # No character of UTF-8 has more than four bytes.
    return output.rstrip()[-4 * SHOWN_CHARACTERS :].decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
