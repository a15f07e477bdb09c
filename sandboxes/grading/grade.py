"""From a program and its tests to a verdict.

    outside  program ── output, values ──► comparison on the host, or a checker in a second sandbox ─► Verdict
    apart    program ◄── calls, values ──► test code in a second sandbox                            ─►
    inside   program and test code in one sandbox                                                   ─►

Outside and apart, what is expected never enters the sandbox that the program runs in. A program that takes over its whole sandbox can
still only choose what it answers, without knowing what the answer should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes.checked_fields import AboveZero, check_argument, shown
from agentrl.sandboxes.grading.runs import Grading, build, run_call, run_code, run_io, wall_clock_s
from agentrl.sandboxes.grading.tests import PYTHON, CallTest, Checker, IOTest, Language, Test
from agentrl.sandboxes.grading.trust import Trust, trust_of
from agentrl.sandboxes.grading.verdict import (
    DEADLINE_OVER,
    EARLIER_FAILED,
    Baseline,
    Status,
    TestResult,
    Verdict,
    check_baseline,
)
from agentrl.sandboxes.inside.plain import NotPlainError, encode
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.sandbox import Limits, Sandbox
from agentrl.system import traces

ATTEMPTS = 3
"""A sandbox that is lost under a program is the engine's fault twice, and the program's the third time."""
DEADLINE_S = 600.0
"""Of a verdict, by default, unless the time limit of one test alone asks for more: each test, build and checker has a bound of its own."""
OVERHEAD_S = 10.0
"""For starting, comparing and clearing, on a busy machine."""


async def grade(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    fail_fast: bool = False,
    partial: Baseline | None = None,
    deadline_s: float | None = None,
) -> Verdict:
    """Run a program against its tests in sandboxes of `pool`.

    Tests run side by side where sandboxes of the pool are free. Each starts in an empty one with the program alone, under `limits` (default: the pool's), of which timeout_s counts the
    program's CPU seconds, so that neither waiting for a sandbox nor a busy machine costs a program its verdict.
    With `fail_fast`, tests after the first that fails do not count, and are not run where no sandbox is free for them.

    With `partial`, the baseline of a vetted task, the verdict has a `fraction`.

    `deadline_s` bounds the whole verdict in seconds of wall-clock time, but for waiting for a sandbox: builds, programs, test code,
    comparisons and checkers. When it is over, tests without a result have the status `deadline`, which is no fault of the program's, or
    `not_run` where tests have exceeded their own time. Default: `default_deadline_s`.

    Whatever the program does is a result.

    Raises:
        ConfigError: Tests that make no sense, or both `partial` and `fail_fast`.
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
    """
    check_argument("source", source, str)
    check_argument("language", language, Language)
    check_argument("limits", limits, Limits | None)
    check_argument("deadline_s", deadline_s, AboveZero | None)
    limits = limits or pool.spec.limits
    _check_tests(tests, language, limits, pool.spec.limits)
    check_baseline("partial", partial, len(tests))
    if partial is not None and fail_fast:
        raise ConfigError("a partial verdict needs the result of every test; leave fail_fast or partial out")
    with traces.span("grading", {"agentrl.grading.tests": len(tests)}) as span:
        grading = Grading(source, language, limits, fail_fast, deadline_s or default_deadline_s(tests, limits))
        verdict = await _grade(grading, tests, pool)
        span.set_attributes({"agentrl.grading.status": verdict.status, "agentrl.grading.pass_rate": verdict.pass_rate})
    return verdict if partial is None else replace(verdict, fraction=verdict.credit(partial))


async def _grade(grading: Grading, tests: Sequence[Test], pool: SandboxPool) -> Verdict:
    """Return the verdict on a program, whose tests are taken one after another by as many workers as sandboxes are free."""
    named = [replace(test, name=_name(test, index)) for index, test in enumerate(tests)]
    trusts = [trust_of(test) for test in named]
    waiting = iter(range(len(named)))
    results: dict[int, list[TestResult]] = {}
    rest: tuple[Status, str] | None = None
    """What becomes of tests that have not run, where no more are to."""
    end = len(named)
    """The tests before this one are run, also where a later one has failed: no verdict hangs on which of them is faster."""
    build_output = ""
    boxes = 1 + any(map(_needs_second_sandbox, named, trusts))

    def note(index: int, found: Sequence[TestResult]) -> None:
        nonlocal rest, end
        results[index] = [replace(result, test_index=index, trust=trusts[index]) for result in found]
        if grading.fail_fast and not all(result.passed for result in found):
            rest, end = (Status.NOT_RUN, EARLIER_FAILED), min(end, index)

    async def work() -> None:
        nonlocal rest, end, build_output
        losses, left_s, index = 0, grading.deadline_s, next(waiting, len(named))
        while index < end and left_s > 0:
            async with pool.take(boxes) as sandboxes:
                started = anyio.current_time()
                try:
                    with anyio.move_on_after(left_s):
                        built, build_output = await build(grading, sandboxes[0])
                        if built is None:
                            rest, end = (Status.BUILD_ERROR, build_output), 0
                        while index < end:
                            note(index, await _run_test(grading, named[index], trusts[index], sandboxes, built or b""))
                            losses, index = 0, next(waiting, len(named))
                except SandboxError as error:
                    # The sandbox is gone, or so full that not even the program can be written to it.
                    losses += 1
                    if losses == ATTEMPTS:
                        status = Status.CHECKER_ERROR if boxes > 1 and sandboxes[1].lost else Status.CRASHED
                        note(index, [TestResult(name=named[index].name, status=status, message=str(error))])
                        losses, index = 0, next(waiting, len(named))
                left_s -= anyio.current_time() - started

    # What has to be built is built once, and so in one sandbox.
    workers = 1 if grading.language.build else max(1, min(len(named), pool.free // boxes))
    try:
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(work)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if any(result.status is Status.TIME_LIMIT for found in results.values() for result in found):
        rest = rest or (Status.NOT_RUN, DEADLINE_OVER)  # they have used up the verdict's time
    status, message = rest or (Status.DEADLINE, DEADLINE_OVER)
    failed = (index for index in sorted(results) if not all(result.passed for result in results[index]))
    last = next(failed, len(named)) if grading.fail_fast else len(named)
    for index in range(len(named)):
        if index not in results or index > last:  # of those that ran beside the first that fails, too, nothing counts
            note(index, [TestResult(name=named[index].name, status=status, message=message)])
    in_order = tuple(result for index in sorted(results) for result in results[index])
    return Verdict(results=in_order, build_output=build_output)


async def _run_test(
    grading: Grading, test: Test, trust: Trust, sandboxes: Sequence[Sandbox], built: bytes
) -> list[TestResult]:
    if isinstance(test, IOTest):
        return [await run_io(grading, test, sandboxes, built)]
    if isinstance(test, CallTest):
        return [await run_call(grading, test, sandboxes[0])]
    return await run_code(grading, test, trust, sandboxes)


def _needs_second_sandbox(test: Test, trust: Trust) -> bool:
    """Return whether a test takes a sandbox beside the program's: for test code that runs apart, or for a checker."""
    return trust is Trust.APART or (isinstance(test, IOTest) and isinstance(test.compare, Checker))


def _name(test: Test, index: int) -> str:
    return test.name or f"test {index + 1}"


def _check_tests(tests: Sequence[Test], language: Language, limits: Limits, sandbox_limits: Limits) -> None:
    check_argument("tests", tests, Sequence[Any])
    if not tests:
        raise ConfigError("tests is an empty list: there is nothing to grade by")
    for index, test in enumerate(tests):
        if not isinstance(test, Test):
            raise ConfigError(f"tests[{index}] = {shown(test)} is no test; load_tests makes tests of those in a task")
        test.limits_of(limits).check_within(sandbox_limits)
        if language != PYTHON and not isinstance(test, IOTest):
            raise ConfigError(f"a {type(test).__name__} calls Python functions; grade other languages by IOTest")
        if isinstance(test, CallTest):
            try:
                encode([list(test.args), test.kwargs, test.expected])
            except NotPlainError as error:
                raise ConfigError(f"{_name(test, index)}, a CallTest of {test.function}, holds {error}") from None


def default_deadline_s(tests: Sequence[Test], limits: Limits) -> float:
    """Return the deadline of a verdict on these tests: DEADLINE_S, or what the slowest test may take where that is more."""
    return max(DEADLINE_S, *(wall_clock_s(test.limits_of(limits)) + OVERHEAD_S for test in tests))
