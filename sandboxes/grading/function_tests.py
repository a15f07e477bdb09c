"""Tests that call a candidate's functions: the host between the candidate's sandbox and the one that holds the test code."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import anyio

from agentrl.sandboxes.grading.answers import GRADED, ExpectedValue, compare_answer, raised
from agentrl.sandboxes.grading.candidate_process import CandidateProcess
from agentrl.sandboxes.grading.exchange import Exchange
from agentrl.sandboxes.grading.last_look import fails_in_one_process
from agentrl.sandboxes.grading.open_questions import Questions, constants
from agentrl.sandboxes.grading.statuses import DEADLINE_OVER
from agentrl.sandboxes.grading.tester_process import TesterProcess
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, TestFile
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.grading.wanted_names import Wanted, wanted_names
from agentrl.sandboxes.inside.plain_data import is_changeable
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import Limits

PATCHES_A_DICT = "patch.dict("
"""Code that puts a dict of the candidate's back as it was must see what the candidate has put into it."""
ONE_PROCESS_S = 10.0
"""Beside twice the time of the first run, so long may the tests take in one process: Python starts and imports pytest there."""
ONE_PROCESS_OUTPUT_MB = 2.0
NOT_CONFIRMED = "it passed, and was not run again to see that it deserves to, since another test failed"


async def grade_call(
    sandbox: Sandbox, source: str, test: CallTest, name: str, limits: Limits, deadline: float
) -> TestResult:
    """Call one function once, and compare what comes back on this side. `deadline` is a time of the event loop's clock."""
    request = {
        "op": "call",
        "path": test.function,
        "args": [
            {"mirror": [GRADED, encode(value)]} if index == test.argument and is_changeable(value) else encode(value)
            for index, value in enumerate(test.args)
        ],
        "kwargs": {key: encode(value) for key, value in test.kwargs.items()},
        "in_place": test.argument is not None,
    }
    async with CandidateProcess(
        sandbox, source, "solution", limits, deadline, cpu_s=limits.cpu_s, tells=False
    ) as candidate:
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
    return ExpectedValue(test.expected, test.tolerance, test.nan_equal, test.wrapped, test.argument, before)


async def run_test_code(
    sandbox: Sandbox,
    test_sandbox: Sandbox,
    source: str,
    test: AssertTest | TestFile,
    name: str,
    limits: Limits,
    deadline: float,
    *,
    fail_fast: bool = False,
) -> list[TestResult]:
    """Run test code in `test_sandbox` against the candidate in `sandbox`, passing calls one way and answers the other.

    What the tests have asked of the candidate's operators is asked again in further runs, each in new processes, with other operands:
    a test that would have passed with any of them has not passed. Nor has one that fails in plain Python, in one process.

    `deadline` is a time of the event loop's clock: at its end, whoever is waited for has failed, the candidate or the test code.
    """
    async with TesterProcess(test_sandbox, deadline) as tester:
        runs = _Runs(sandbox, tester, source, test, name, limits, deadline)
        return await _graded(runs, fail_fast=fail_fast)


class _Runs:
    """The runs of one test's code, each against a candidate in a sandbox as new."""

    def __init__(
        self,
        sandbox: Sandbox,
        tester: TesterProcess,
        source: str,
        test: AssertTest | TestFile,
        name: str,
        limits: Limits,
        deadline: float,
    ) -> None:
        self.source = source
        self.test = test
        self.deadline = deadline
        self._sandbox = sandbox
        self._tester = tester
        self._name = name
        self._limits = limits
        self._first_run_s = 0.0
        self._job = _job(test, name, test.module if isinstance(test, TestFile) else "solution")
        # A file's tests share the candidate's process, whose CPU seconds are then no single test's.
        self._cpu_s = limits.cpu_s if isinstance(test, AssertTest) else None

    async def run(
        self, *, replay: dict[str, Any] | None = None, in_place: bool | None, fail_fast: bool = False
    ) -> Exchange:
        """Run the test code once; with `replay`, ask again and ask otherwise what that says."""
        exchange, started = Exchange(self._name), anyio.current_time()
        more = {"replay": replay, "in_place": in_place, "fail_fast": fail_fast}
        job = json.dumps({**self._job, **more}).encode()
        module = str(self._job["module"])
        tester = await self._tester.begin(job)
        async with CandidateProcess(
            self._sandbox, self.source, module, self._limits, self.deadline, cpu_s=self._cpu_s
        ) as candidate:
            # A program must not tell which run this is by how many processes or files there were before, or how old the sandbox is.
            await self._sandbox.reset()
            if isinstance(self.test, TestFile):
                for path in self.test.shared:
                    await self._sandbox.write(path, self.test.file(path))
            await exchange.follow(tester, candidate)
        if not exchange.finished:
            await self._tester.end()
        self._first_run_s = self._first_run_s or anyio.current_time() - started
        return exchange

    async def fails_in_one_process(self, results: list[TestResult]) -> dict[str, str]:
        """Return which of the tests that have passed fail in one process with the program, and why.

        They have twice the time of the first run, and all that their sandbox has.
        """
        own, spec = self._limits, self._sandbox.spec.limits
        limits = replace(
            spec,
            timeout_s=ONE_PROCESS_S + 2 * self._first_run_s,
            cpu_s=None,
            output_mb=ONE_PROCESS_OUTPUT_MB,
            open_files=own.open_files + spec.open_files,
        )
        return await fails_in_one_process(self._sandbox, self.source, self._job, results, limits, self.deadline)


async def _graded(runs: _Runs, *, fail_fast: bool) -> list[TestResult]:
    """Return the results of as many runs as it takes."""
    in_place = runs.test.in_place
    if in_place is None and PATCHES_A_DICT in runs.test.code:
        in_place = True
    exchange = await runs.run(in_place=in_place, fail_fast=fail_fast)
    results = exchange.all_results()
    revoked = exchange.revoked
    if fail_fast and exchange.failed:
        return _revoke(_without_unsure(results, exchange, in_place=in_place), revoked, set())
    failed = await runs.fails_in_one_process(results)
    results = _revoke(results, failed, {*failed} if anyio.current_time() >= runs.deadline else set())
    if fail_fast and not all(result.passed for result in results):
        return _revoke(_without_unsure(results, exchange, in_place=in_place), revoked, set())
    if exchange.spoilt and in_place is None and any(result.passed for result in results):
        # A program may change what it was given, and return what is right: tests pass only if they do so where they see that, too.
        told = await runs.run(in_place=True)
        lost = replace(results[0], status=Status.RUNTIME_ERROR, message="the program did not come to this test again")
        seen = {result.name: result for result in told.all_results()}
        results = [
            seen.get(result.name, replace(lost, name=result.name)) if result.passed else result for result in results
        ]
        revoked |= told.revoked
    passed = {result.name for result in results if result.passed}
    questions = Questions([question for question in exchange.questions if question.test in passed])
    known = {**exchange.told, "constants": constants(runs.source)} if questions.open_tests else {}
    late: set[str] = set()
    for replay in questions.runs():
        if anyio.current_time() >= runs.deadline:
            late = questions.open_tests
            revoked |= dict.fromkeys(late, f"{DEADLINE_OVER} before it could be run again")
            break
        replayed = await runs.run(replay={**replay, **known}, in_place=in_place)
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
    return _revoke(results, revoked, late)


def _revoke(results: list[TestResult], revoked: dict[str, str], late: set[str]) -> list[TestResult]:
    """Return the results without the passes of the tests that are `revoked`, with why; of those that are `late`, for want of time."""
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


def _without_unsure(results: list[TestResult], exchange: Exchange, *, in_place: bool | None) -> list[TestResult]:
    """Return the results without the passes that only further runs can confirm, where there will be none since a test has failed."""
    asked = {question.test for question in exchange.questions}
    spoilt = exchange.spoilt and in_place is None
    return [
        replace(result, status=Status.NOT_RUN, message=NOT_CONFIRMED)
        if result.passed and (spoilt or result.name in asked)
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
