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

import anyio

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes.checked_fields import AboveZero, check_argument
from agentrl.sandboxes.grading.bench import Bench
from agentrl.sandboxes.grading.gradable import check_gradable, needs_second_sandbox, test_name
from agentrl.sandboxes.grading.statuses import DEADLINE_OVER, EARLIER_FAILED
from agentrl.sandboxes.grading.tests import (
    PYTHON,
    Checker,
    IOTest,
    Language,
    Test,
    TestFile,
    changed_limits,
    wall_clock_s,
)
from agentrl.sandboxes.grading.trust import trust_of
from agentrl.sandboxes.grading.verdict import Status, TestResult, Verdict
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.seams import Limits

ATTEMPTS = 3
"""A sandbox that is lost under a program is the engine's fault twice, and the program's the third time."""
MAX_DEADLINE_S = 600.0
"""Of a verdict, by default, unless the time limit of one test alone asks for more."""
FILE_TESTS = 4
"""A file of tests counts as so many tests in the default deadline."""
OVERHEAD_S = 10.0
"""Part of the default deadline: what starting, comparing and clearing take, on a busy machine."""
GRACE_S = 15.0
"""How long after its deadline a verdict waits for a sandbox that should have ended its program."""


async def grade(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    fail_fast: bool = False,
    deadline_s: float | None = None,
) -> Verdict:
    """Run a program against its tests in sandboxes of `pool`.

    Each test starts in an empty sandbox with the program alone, under `limits` (default: the pool's), of which timeout_s counts the
    program's CPU seconds, so that neither waiting for a sandbox nor a busy machine costs a program its verdict.
    With `fail_fast`, tests after the first that fails are not run.

    `deadline_s` bounds the whole verdict in seconds of wall-clock time, but for waiting for a sandbox: builds, programs, test code,
    comparisons and checkers. When it is over, the test that runs has exceeded its time limit, or is a checker error if the
    program was not what was waited for, and later tests are not run. Default: `default_deadline_s`.

    Whatever the program does is a result.

    Raises:
        ConfigError: Tests that make no sense.
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
    """
    check_argument("pool", pool, SandboxPool)
    if isinstance(language, str):
        raise ConfigError(f"language = {language!r} is text; use PYTHON, CPP or a Language(file=..., run=(...))")
    check_argument("language", language, Language)
    check_argument("limits", limits, Limits | None)
    check_argument("fail_fast", fail_fast, bool)
    check_argument("deadline_s", deadline_s, AboveZero | None)
    limits = limits or pool.spec.limits
    check_gradable(source, tests, language, limits, pool.spec.limits)
    tests = [replace(test, name=test_name(test, index)) for index, test in enumerate(tests)]
    trusts = [trust_of(test) for test in tests]
    results: list[TestResult] = []

    def note(index: int, found: Sequence[TestResult]) -> bool:
        """Add results of a test; whether the tests after it are still to be run."""
        results.extend(replace(result, test_index=index, trust=trusts[index]) for result in found)
        return not (fail_fast and any(not result.passed for result in found))

    def note_rest(index: int, status: Status, message: str) -> Verdict:
        """Add one result for each test from `index` on."""
        for later in range(index, len(tests)):
            note(later, [TestResult(name=tests[later].name, status=status, message=message)])
        return Verdict(results=tuple(results), build_output=build_output)

    build_output = ""
    left_s = deadline_s or default_deadline_s(tests, language, limits)
    index = losses = 0
    goes_on = True
    while index < len(tests) and goes_on:
        if left_s <= 0:
            return note_rest(index, Status.NOT_RUN, DEADLINE_OVER)
        several = any(needs_second_sandbox(*one) for one in zip(tests[index:], trusts[index:], strict=True))
        async with pool.take(2 if several else 1) as sandboxes:
            started = anyio.current_time()
            bench = Bench(source, language, limits, sandboxes, deadline=started + left_s, fail_fast=fail_fast)
            try:
                with anyio.move_on_after(left_s + GRACE_S) as bound:
                    build_output = await bench.build()
                    if bench.build_failed:
                        return note_rest(index, Status.BUILD_ERROR, build_output)
                    while index < len(tests) and goes_on and not bench.over:
                        async with bench.runs_together(tests[index:]) as runs:
                            for run in runs:
                                goes_on = note(index, await bench.run(tests[index], trusts[index], run))
                                index, losses = index + 1, 0
                                if bench.over or not goes_on:
                                    break
                if bound.cancelled_caught:
                    raise SandboxError(f"the sandbox did not end the program within {GRACE_S:g} s of the deadline")
            except SandboxError as error:
                # The sandbox is gone, or so full that not even the program can be written to it.
                losses += 1
                if losses == ATTEMPTS or bench.over:
                    ours = bound.cancelled_caught or (len(sandboxes) == 2 and sandboxes[1].lost)
                    status = Status.CHECKER_ERROR if ours else Status.CRASHED
                    goes_on = note(index, [TestResult(name=tests[index].name, status=status, message=str(error))])
                    index, losses = index + 1, 0
            left_s -= anyio.current_time() - started
    return note_rest(index, Status.NOT_RUN, EARLIER_FAILED)


def default_deadline_s(tests: Sequence[Test], language: Language, limits: Limits) -> float:
    """Return the deadline of a verdict on these tests.

    What they take if each of them is as slow as it may be, with all its sleeping, and at most MAX_DEADLINE_S, or the time limit of
    the slowest test where that is more.
    """
    total = OVERHEAD_S + (language.build_timeout_s if language.build else 0)
    longest = 0.0
    for test in tests:
        wall_s = wall_clock_s(changed_limits(limits, test.limits))
        longest = max(longest, wall_s)
        total += wall_s * (FILE_TESTS if isinstance(test, TestFile) else 1)
        if isinstance(test, IOTest) and isinstance(test.compare, Checker):
            total += (test.compare.limits or limits).timeout_s
    return min(total, max(MAX_DEADLINE_S, longest + OVERHEAD_S))
