"""Tests that call a candidate's functions: the host between the candidate's box and the one that holds the test code."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import anyio

from agentrl.sandboxes.answers import ExpectedValue, raised
from agentrl.sandboxes.apart import compare_answer
from agentrl.sandboxes.box import Box
from agentrl.sandboxes.candidate_process import TEST_CODE_TIMEOUT_S, CandidateProcess
from agentrl.sandboxes.exchange import Exchange
from agentrl.sandboxes.inside.plain_data import encode
from agentrl.sandboxes.open_questions import Questions, constants
from agentrl.sandboxes.protocol import Limits
from agentrl.sandboxes.statuses import DEADLINE_OVER
from agentrl.sandboxes.verdict import AssertTest, CallTest, Status, TestFile, TestResult
from agentrl.sandboxes.wanted_names import Wanted, wanted_names

TESTER = "from agentrl.sandboxes.inside.tester import main; main()"
TEST_CODE_OUTPUT_MB = 64.0
"""For the process that runs test code. The candidate's share of its time has limits of its own."""
TESTER_GRACE_S = 2.0
"""How long after a verdict's deadline test code may still report what has become of its tests."""


async def judge_call(box: Box, source: str, test: CallTest, name: str, limits: Limits, deadline: float) -> TestResult:
    """Call one function once, and compare what comes back on this side. `deadline` is a time of the event loop's clock."""
    request = {
        "op": "call",
        "path": test.function,
        "args": [encode(value) for value in test.args],
        "kwargs": {key: encode(value) for key, value in test.kwargs.items()},
        "in_place": test.argument is not None,
    }
    async with CandidateProcess(box, source, "solution", limits, deadline, cpu_s=limits.cpu_s) as candidate:
        error = None
        answer = await candidate.load()
        if answer is not None and (error := raised(answer)) is None:
            answer = await candidate.ask(json.dumps(request).encode())
            error = None if answer is None else raised(answer)
        if candidate.failure is not None:
            status, message = candidate.failure
        elif error is not None:
            status, message = Status.RUNTIME_ERROR, error
        else:
            assert answer is not None
            status, message = await compare_answer(_expectation(test), answer, deadline)
    return TestResult(
        name=name,
        status=status,
        message=message,
        duration_s=candidate.spent_s,
        cpu_s=candidate.usage.cpu_s,
        peak_memory_bytes=candidate.usage.peak_memory_bytes,
    )


def _expectation(test: CallTest) -> ExpectedValue:
    before = None if test.argument is None else test.args[test.argument]
    return ExpectedValue(test.expected, test.tolerance, test.nan_equal, test.argument, before)


async def run_test_code(
    box: Box,
    test_box: Box,
    source: str,
    test: AssertTest | TestFile,
    name: str,
    limits: Limits,
    deadline: float,
    *,
    fail_fast: bool = False,
) -> list[TestResult]:
    """Run test code in `test_box` against the candidate in `box`, passing calls one way and answers the other.

    What the tests have asked of the candidate's operators is asked again in further runs, each in new processes, with other operands:
    a test that would have passed with any of them has not passed.

    `deadline` is a time of the event loop's clock: at its end, whoever is waited for has failed, the candidate or the test code.
    """
    job = _job(test, name, test.module if isinstance(test, TestFile) else "solution")
    # A file's tests share the candidate's process, whose CPU seconds are then no single test's.
    cpu_s = limits.cpu_s if isinstance(test, AssertTest) else None

    async def run(
        replay: dict[str, Any] | None,
        exchange: Exchange,
        *,
        in_place: bool | None = test.in_place,
        fail_fast: bool = False,
    ) -> None:
        await test_box.clear()
        left_s = max(0.0, deadline - anyio.current_time()) + TESTER_GRACE_S
        timeout_s = min(TEST_CODE_TIMEOUT_S, left_s)
        own_limits = test_box.spec.limits.but(timeout_s=timeout_s, output_mb=TEST_CODE_OUTPUT_MB)
        tester = await test_box.start_python(TESTER, limits=own_limits)
        async with (
            tester,
            CandidateProcess(box, source, str(job["module"]), limits, deadline, cpu_s=cpu_s) as candidate,
        ):
            # A program must not tell which run this is by how many processes or files there were before, or how old the box is.
            await box.reset()
            if isinstance(test, TestFile):
                for path in test.shared:
                    await box.write(path, test.file(path))
            await tester.send(b"v" + json.dumps({**job, "replay": replay, "in_place": in_place}).encode() + b"\n")
            await exchange.follow(tester, candidate, fail_fast=fail_fast)

    exchange = Exchange(name)
    await run(None, exchange, fail_fast=fail_fast)
    results = exchange.all_results()
    if exchange.spoilt and test.in_place is None and any(result.passed for result in results):
        # A program may change what it was given, and return what is right: tests pass only if they do so where they see that, too.
        told = Exchange(name)
        await run(None, told, in_place=True)
        lost = replace(results[0], status=Status.RUNTIME_ERROR, message="the program did not come to this test again")
        seen = {result.name: result for result in told.all_results()}
        results = [
            seen.get(result.name, replace(lost, name=result.name)) if result.passed else result for result in results
        ]
        exchange.revoked |= told.revoked
    passed = {result.name for result in results if result.passed}
    questions = Questions([question for question in exchange.questions if question.test in passed])
    known = {**exchange.told, "constants": constants(source)} if questions.open_tests else {}
    revoked = exchange.revoked
    late: set[str] = set()
    for replay in questions.runs():
        if anyio.current_time() >= deadline:
            late = questions.open_tests
            revoked |= dict.fromkeys(late, f"{DEADLINE_OVER} before it could be run again")
            break
        replayed = Exchange(name)
        await run({**replay, **known}, replayed)
        revoked |= replayed.revoked
        # With more to do, what is slow may not come to its questions in time.
        like_first = replay["keeps"] and not replay["shifts"] and not replayed.over_time
        questions.note(replayed.answers, replayed.looks, like_first=like_first)
        questions.leave_out(revoked)
        if fail_fast and revoked:
            break
    unearned = questions.passed_for_nothing()
    revoked |= unearned
    late -= unearned.keys()
    return [
        replace(
            result,
            status=Status.TIME_LIMIT if result.name in late else Status.WRONG_ANSWER,
            message=revoked[result.name],
        )
        if result.passed and result.name in revoked
        else result
        for result in results
    ]


def _job(test: AssertTest | TestFile, name: str, module: str) -> dict[str, Any]:
    wanted = wanted_names([test])
    job = {
        "name": name,
        "code": test.code,
        "module": module,
        "names": list(wanted),
        "functions": [name for name, kind in wanted.items() if kind is Wanted.FUNCTION],
        "prelude": "",
        "entry_point": None,
        "candidate_names": (),
    }
    if isinstance(test, TestFile):
        laid_out = {path: base64.b64encode(test.file(path)).decode() for path in test.files}
        return {**job, "kind": test.framework, "files": laid_out}
    return {
        **job,
        "kind": "assert",
        "prelude": test.prelude,
        "entry_point": test.entry_point,
        "candidate_names": test.candidate_names,
    }
