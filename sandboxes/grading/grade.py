"""From a program and its tests to a verdict that the program cannot forge.

What is expected never enters the sandbox that the candidate runs in. Output and returned values leave it as plain data and are
compared here; test code that asserts runs in a second sandbox, and a checker too. So a candidate that takes over its whole sandbox can
still only choose what it answers, without knowing what the answer should be.

    candidate's sandbox: program, inputs ── output, values ──►  comparison here             ─► Verdict
                          ▲                            ──►  checker in the second sandbox   ─►
                          └──────── calls, values ───────►  test code in the second sandbox ─►
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes.checked_fields import AboveZero, check_argument
from agentrl.sandboxes.grading.bench import Bench, wall_clock_s
from agentrl.sandboxes.grading.gradable import (
    check_gradable,
    fault_of_text,
    needs_second_sandbox,
    not_written,
    test_name,
)
from agentrl.sandboxes.grading.statuses import DEADLINE_OVER, EARLIER_FAILED
from agentrl.sandboxes.grading.tests import PYTHON, Checker, IOTest, Language, Test, TestFile, changed_limits
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
    if (fault := fault_of_text(source)) is not None:
        return not_written(fault, tests, language, fail_fast=fail_fast)
    left_s = deadline_s or default_deadline_s(tests, language, limits)
    results: list[TestResult] = []
    build_output = ""
    index = losses = 0
    while index < len(tests):
        if left_s <= 0:
            name = test_name(tests[index], index)
            results.append(TestResult(name=name, status=Status.NOT_RUN, message=DEADLINE_OVER, test_index=index))
            index += 1
            continue
        async with pool.take(2 if any(map(needs_second_sandbox, tests[index:])) else 1) as sandboxes:
            started = anyio.current_time()
            bench = Bench(source, language, limits, sandboxes, deadline=started + left_s, fail_fast=fail_fast)
            try:
                with anyio.move_on_after(left_s + GRACE_S) as bound:
                    build_output = await bench.build()
                    while index < len(tests) and (bench.build_failed or not bench.over):
                        if bench.build_failed or (fail_fast and any(not result.passed for result in results)):
                            name = test_name(tests[index], index)
                            status, message = (Status.NOT_RUN, EARLIER_FAILED)
                            if bench.build_failed:
                                status, message = (Status.BUILD_ERROR, build_output)
                            results.append(TestResult(name=name, status=status, message=message, test_index=index))
                            index += 1
                            continue
                        async with bench.runs_together(tests[index:]) as runs:
                            for run in runs:
                                found = await bench.run(tests[index], test_name(tests[index], index), run)
                                results += [replace(result, test_index=index) for result in found]
                                index, losses = index + 1, 0
                                if bench.over:
                                    break
                if bound.cancelled_caught:
                    raise SandboxError(f"the sandbox did not end the program within {GRACE_S:g} s of the deadline")
            except SandboxError as error:
                # The sandbox is gone, or so full that not even the program can be written to it.
                losses += 1
                if losses == ATTEMPTS or bench.over:
                    ours = bound.cancelled_caught or (len(sandboxes) == 2 and sandboxes[1].lost)
                    status = Status.CHECKER_ERROR if ours else Status.CRASHED
                    name = test_name(tests[index], index)
                    results.append(TestResult(name=name, status=status, message=str(error), test_index=index))
                    index, losses = index + 1, 0
            left_s -= anyio.current_time() - started
    return Verdict(results=tuple(results), build_output=build_output)


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
