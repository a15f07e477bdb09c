"""Check a program and its tests before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument, shown
from agentrl.sandboxes.grading.tests import CallTest, Checker, IOTest, Language, Test, changed_limits
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.inside.plain import NotPlainError, encode
from agentrl.sandboxes.seams import Limits


def check_gradable(
    source: str, tests: Sequence[Test], language: Language, limits: Limits, sandbox_limits: Limits
) -> None:
    """Check that a run could grade a program by these tests.

    Raises:
        ConfigError: The program or a test is of the wrong kind, there are no tests, or a test needs what cannot be had.
    """
    if not isinstance(source, str):
        raise ConfigError(
            f"source = {shown(source)} must be a program's text; extract_code gives None where a reply has none"
        )
    check_argument("tests", tests, Sequence[Any])
    if not tests:
        raise ConfigError("tests is an empty list: there is nothing to grade by")
    for index, test in enumerate(tests):
        if not isinstance(test, Test):
            raise ConfigError(
                f"tests[{index}] = {shown(test)} must be an IOTest, CallTest, AssertTest or TestFile; load_tests makes them of "
                "those in a task"
            )
        changed_limits(limits, test.limits).check_within(sandbox_limits)
        if language.build and not isinstance(test, IOTest):
            raise ConfigError(f"a {type(test).__name__} calls Python functions; grade other languages by IOTest")
        if isinstance(test, CallTest):
            try:
                encode([list(test.args), test.kwargs, test.expected])
            except NotPlainError as error:
                raise ConfigError(f"{test_name(test, index)}, a CallTest of {test.function}, holds {error}") from None


def needs_second_sandbox(test: Test, trust: Trust) -> bool:
    """Return whether a test takes a sandbox beside the program's: for test code that runs apart, or for a checker."""
    return trust is Trust.APART or (isinstance(test, IOTest) and isinstance(test.compare, Checker))


def test_name(test: Test, index: int) -> str:
    """Return what a test is called, by itself or else by its place among the tests."""
    return test.name or f"test {index + 1}"
