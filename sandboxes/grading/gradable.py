"""Check a program and its tests before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument, shown
from agentrl.sandboxes.grading.needs import needs
from agentrl.sandboxes.grading.tests import (
    AssertTest,
    CallTest,
    Checker,
    IOTest,
    Language,
    Test,
    TestFile,
    changed_limits,
)
from agentrl.sandboxes.grading.verdict import Status, TestResult, Verdict
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode
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
        if isinstance(test, IOTest):
            _check_io(test, test_name(test, index))
        elif language.build:
            raise ConfigError(f"a {type(test).__name__} calls Python functions; grade other languages by IOTest")
        if (need := needs(test)) is not None:
            raise ConfigError(f"{test_name(test, index)} needs {need}")
        if isinstance(test, CallTest):
            try:
                decode(encode([list(test.args), test.kwargs, test.expected]))
            except RecursionError:
                raise ConfigError(
                    f"{test_name(test, index)}, a CallTest of {test.function}: its data is nested too deep"
                ) from None
            except NotPlainError as error:
                raise ConfigError(f"{test_name(test, index)}, a CallTest of {test.function}: {error}") from None


def _check_io(test: IOTest, name: str) -> None:
    texts = {"stdin": test.stdin, "stdout": test.stdout}
    if isinstance(test.compare, Checker):
        texts["compare.source"] = test.compare.source
    for field, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{name}: {field} cannot be encoded as UTF-8 ({error.reason}, at {error.start})"
            ) from None


def fault_of_text(source: str) -> str | None:
    """Return why a program cannot be written to a file; a model's text may hold half a surrogate pair, which no encoding has."""
    try:
        source.encode()
    except UnicodeEncodeError as error:
        return f"the program's text has no encoding: {error.reason}, at character {error.start}"
    return None


def not_written(fault: str, tests: Sequence[Test], language: Language, *, fail_fast: bool) -> Verdict:
    """Return the verdict on a program that cannot be written: as on one that its language refuses to build, or to run."""
    refused = Status.BUILD_ERROR if language.build else Status.RUNTIME_ERROR
    results = []
    for index, test in enumerate(tests):
        status = Status.NOT_RUN if index and fail_fast and not language.build else refused
        results.append(TestResult(name=test_name(test, index), status=status, message=fault, test_index=index))
    return Verdict(results=tuple(results), build_output=fault if language.build else "")


def needs_second_sandbox(test: Test) -> bool:
    """Return whether a test takes a sandbox beside the program's: for test code, or for a checker."""
    return isinstance(test, AssertTest | TestFile) or (isinstance(test, IOTest) and isinstance(test.compare, Checker))


def test_name(test: Test, index: int) -> str:
    """Return what a test is called, by itself or else by its place among the tests."""
    return test.name or f"test {index + 1}"
