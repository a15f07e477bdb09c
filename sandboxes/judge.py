"""From a program and its tests to a verdict that the program cannot forge.

What is expected never enters the box that the candidate runs in. Output and returned values leave it as plain data and are
compared here; test code that asserts runs in a second box, and a checker too. So a candidate that takes over its whole box can
still only choose what it answers, without knowing what the answer should be.

    candidate's box: program, inputs ── output, values ──►  comparison here             ─► Verdict
                          ▲                            ──►  checker in the second box   ─►
                          └──────── calls, values ───────►  test code in the second box ─►
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from agentrl.errors import ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes.answers import ExpectedOutput
from agentrl.sandboxes.apart import check_comparison, compare_answer
from agentrl.sandboxes.box import Box, Process
from agentrl.sandboxes.checked_fields import AboveZero, check_argument, shown
from agentrl.sandboxes.function_tests import DEADLINE_OVER, judge_call, run_test_code, status_of, tail
from agentrl.sandboxes.inside.plain_data import NotPlainError, encode
from agentrl.sandboxes.needs import needs
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.protocol import Completed, Limits
from agentrl.sandboxes.verdict import (
    PYTHON,
    AssertTest,
    CallTest,
    ChangedLimits,
    Checker,
    IOTest,
    Language,
    Status,
    Test,
    TestFile,
    TestResult,
    Verdict,
    changed_limits,
)

ATTEMPTS = 3
"""A box that is lost under a program is the engine's fault twice, and the program's the third time."""
WALL_CLOCK_SLACK = 4.0
"""A test's timeout_s counts CPU seconds; its wall clock runs so many times longer, for sleepers and for a busy machine,"""
MIN_WALL_CLOCK_S = 2.0
"""and so long at least: a machine may have no time for a program for a second."""
MAX_DEADLINE_S = 600.0
"""Of a verdict, by default, unless the time limit of one test alone asks for more."""
FILE_TESTS = 4
"""A file of tests counts as so many tests in the default deadline."""
OVERHEAD_S = 10.0
"""Part of the default deadline: what starting, comparing and clearing take, on a busy machine."""
NO_SUCH_PROGRAM = 127
"""The exit code of a run whose program is not there."""
TOGETHER = 16
"""So many runs of a program are asked for by one message,"""
TOGETHER_BYTES = 2**20
"""if their inputs, each with the program, are no larger than this."""
GRACE_S = 15.0
"""How long after its deadline a verdict waits for a sandbox that should have ended its program."""


async def judge(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    fail_fast: bool = False,
    deadline_s: float | None = None,
) -> Verdict:
    """Run a program against its tests in boxes of `pool`.

    Each test starts in an empty box with the program alone, under `limits` (default: the pool's), of which timeout_s counts the
    program's CPU seconds, so that neither waiting for a box nor a busy machine costs a program its verdict.
    With `fail_fast`, tests after the first that fails are not run.

    `deadline_s` bounds the whole verdict in seconds of wall-clock time, but for waiting for a box: builds, programs, test code,
    comparisons and checkers. When it is over, the test that runs has exceeded its time limit, or is a checker error if the
    program was not what was waited for, and later tests are not run. Default: `default_deadline_s`.

    Whatever the program does is a result. Raises ConfigError for tests that make no sense, SandboxError when there is no box.
    """
    check_argument("pool", pool, SandboxPool)
    check_argument("language", language, Language)
    check_argument("limits", limits, Limits | None)
    check_argument("fail_fast", fail_fast, bool)
    check_argument("deadline_s", deadline_s, AboveZero | None)
    limits = limits or pool.spec.limits
    _check(source, tests, language, limits, pool.spec.limits)
    if (fault := _fault_of_text(source)) is not None:
        return _not_written(fault, tests, language, fail_fast=fail_fast)
    left_s = deadline_s or default_deadline_s(tests, language, limits)
    results: list[TestResult] = []
    build_output = ""
    index = losses = 0
    while index < len(tests):
        if left_s <= 0:
            name = _name(tests[index], index)
            results.append(TestResult(name=name, status=Status.NOT_RUN, message=DEADLINE_OVER, test_index=index))
            index += 1
            continue
        async with pool.take(2 if any(map(_needs_second_box, tests[index:])) else 1) as boxes:
            started = anyio.current_time()
            bench = _Bench(source, language, limits, boxes, deadline=started + left_s, fail_fast=fail_fast)
            try:
                with anyio.move_on_after(left_s + GRACE_S) as bound:
                    build_output = await bench.build()
                    while index < len(tests) and (bench.build_failed or not bench.over):
                        if bench.build_failed or (fail_fast and any(not result.passed for result in results)):
                            name = _name(tests[index], index)
                            status = Status.BUILD_ERROR if bench.build_failed else Status.NOT_RUN
                            results.append(TestResult(name=name, status=status, message=build_output, test_index=index))
                            index += 1
                            continue
                        async with bench.started(tests[index:]) as runs:
                            for run in runs:
                                found = await bench.run(tests[index], _name(tests[index], index), run)
                                results += [replace(result, test_index=index) for result in found]
                                index, losses = index + 1, 0
                                if bench.over:
                                    break
                if bound.cancelled_caught:
                    raise SandboxError(f"the sandbox did not end the program within {GRACE_S:g} s of the deadline")
            except SandboxError as error:
                # The box is gone, or so full that not even the program can be written to it.
                losses += 1
                if losses == ATTEMPTS or bench.over:
                    ours = bound.cancelled_caught or (len(boxes) == 2 and boxes[1].lost)
                    status = Status.CHECKER_ERROR if ours else Status.CRASHED
                    name = _name(tests[index], index)
                    results.append(TestResult(name=name, status=status, message=str(error), test_index=index))
                    index, losses = index + 1, 0
            left_s -= anyio.current_time() - started
    return Verdict(results=tuple(results), build_output=build_output)


def wall_clock_s(limits: Limits) -> float:
    """How long a test may take by the clock, waiting for its turn and sleeping included."""
    return max(MIN_WALL_CLOCK_S, limits.timeout_s * WALL_CLOCK_SLACK)


def default_deadline_s(tests: Sequence[Test], language: Language, limits: Limits) -> float:
    """The deadline of a verdict on these tests: what they take if each of them is as slow as it may be, with all its sleeping, and
    at most MAX_DEADLINE_S, or the time limit of the slowest test where that is more."""
    total = OVERHEAD_S + (language.build_timeout_s if language.build else 0)
    longest = 0.0
    for test in tests:
        wall_s = wall_clock_s(changed_limits(limits, test.limits))
        longest = max(longest, wall_s)
        total += wall_s * (FILE_TESTS if isinstance(test, TestFile) else 1)
        if isinstance(test, IOTest) and isinstance(test.compare, Checker):
            total += (test.compare.limits or limits).timeout_s
    return min(total, max(MAX_DEADLINE_S, longest + OVERHEAD_S))


class _Bench:
    """A program laid out for its tests in boxes that are at hand."""

    def __init__(
        self,
        source: str,
        language: Language,
        limits: Limits,
        boxes: Sequence[Box],
        *,
        deadline: float,
        fail_fast: bool,
    ) -> None:
        self.build_failed = False
        self._source = source
        self._language = language
        self._limits = limits
        self._box = boxes[0]
        self._second_box = boxes[-1]
        self._deadline = deadline
        self._fail_fast = fail_fast
        self._built: bytes | None = None
        self._built_checkers: dict[Checker, bytes] = {}

    @property
    def over(self) -> bool:
        """Whether the verdict's deadline is over."""
        return anyio.current_time() >= self._deadline

    def _at_most(self, timeout_s: float) -> float:
        """A time limit that ends with the deadline."""
        return min(timeout_s, max(0.01, self._deadline - anyio.current_time()))

    async def build(self) -> str:
        """Build the program where its language is built; returns what the build printed."""
        if not self._language.build:
            return ""
        done = await self._build(self._box, self._source, self._language)
        self.build_failed = not done.ok
        if done.ok:
            try:
                self._built = await self._box.snapshot()
            except SandboxLostError:
                raise
            except SandboxError as error:  # it left more than a snapshot may hold
                self.build_failed = True
                return str(error)
        return tail(done.stdout) + tail(done.stderr)

    @asynccontextmanager
    async def started(self, tests: Sequence[Test]) -> AsyncIterator[Sequence[Process | None]]:
        """The program's runs for the first of `tests`, where those can be asked for together; else [None], for one test."""
        together = self._together(tests)
        if len(together) < 2:
            yield [None]
            return
        async with self._box.python_runs(
            self._language.file,
            [test.stdin.encode() for test in together],
            limits=self._bounded(together[0].limits),
            only_files=self._files(),
            within_s=self._at_most(math.inf),
        ) as runs:
            yield runs

    def _files(self) -> dict[str, bytes]:
        return {self._language.file: self._source.encode()}

    def _together(self, tests: Sequence[Test]) -> list[IOTest]:
        """The first of `tests` that one message can ask for: with `fail_fast`, each waits for what the one before it comes to."""
        found: list[IOTest] = []
        if self._fail_fast or self._built is not None or list(self._language.run) != ["python3", self._language.file]:
            return found
        room = TOGETHER_BYTES
        for test in tests[:TOGETHER]:
            if not isinstance(test, IOTest) or (found and test.limits != found[0].limits):
                break
            room -= len(test.stdin) + len(self._source)
            if room < 0:
                break
            found.append(test)
        return found

    def _bounded(self, change: ChangedLimits) -> Limits:
        limits = changed_limits(self._limits, change)
        return limits.but(cpu_s=limits.cpu_s or limits.timeout_s, timeout_s=self._at_most(wall_clock_s(limits)))

    async def run(self, test: Test, name: str, run: Process | None) -> list[TestResult]:
        """Judge one test; a file of tests gives a result for each of them. `run`: the program's, when it is started already."""
        limits = self._bounded(test.limits)
        if isinstance(test, CallTest):
            await self._box.clear()
            return [await judge_call(self._box, self._source, test, name, limits, self._deadline)]
        if isinstance(test, AssertTest | TestFile):
            return await run_test_code(
                self._box,
                self._second_box,
                self._source,
                test,
                name,
                limits,
                self._deadline,
                fail_fast=self._fail_fast,
            )
        return [await self._run_io(test, name, limits, run)]

    async def _run_io(self, test: IOTest, name: str, limits: Limits, run: Process | None) -> TestResult:
        if run is not None:
            done = await run.wait()
        elif self._built is not None:
            await self._box.restore(self._built)
            done = await _run(self._box, self._language, test.stdin.encode(), limits)
        else:
            done = await _run(self._box, self._language, test.stdin.encode(), limits, only_files=self._files())
        status, message = status_of(done)
        if status is Status.PASSED:
            status, message = await self._compare(test, done.stdout)
        return TestResult(
            name=name,
            status=status,
            message=message,
            duration_s=done.duration_s,
            cpu_s=done.cpu_s,
            peak_memory_bytes=done.peak_memory_bytes,
        )

    async def _compare(self, test: IOTest, stdout: bytes) -> tuple[Status, str]:
        if isinstance(test.compare, Checker):
            return await self._check(test.compare, test, stdout)
        return await compare_answer(ExpectedOutput(test.stdout, test.compare), stdout, self._deadline)

    async def _check(self, checker: Checker, test: IOTest, output: bytes) -> tuple[Status, str]:
        box, language = self._second_box, checker.language
        if checker in self._built_checkers:
            await box.restore(self._built_checkers[checker])
        else:
            await box.clear()
            if language.build:
                done = await self._build(box, checker.source, language)
                if not done.ok:
                    return Status.CHECKER_ERROR, f"the checker cannot be built: {tail(done.stdout + done.stderr)}"
                self._built_checkers[checker] = await box.snapshot()
            else:
                await _write(box, language, checker.source)
        for path, content in (("input", test.stdin), ("output", output), ("answer", test.stdout)):
            await box.write(path, content)
        limits = checker.limits or box.spec.limits
        limits = limits.but(timeout_s=self._at_most(limits.timeout_s))
        done = await _run(box, language, b"", limits, args=("input", "output", "answer"))
        if done.ok:
            return Status.PASSED, ""
        rejected = done.exit_code in (1, 2)
        return Status.WRONG_ANSWER if rejected else Status.CHECKER_ERROR, tail(done.stdout + done.stderr) or done.ended

    async def _build(self, box: Box, source: str, language: Language) -> Completed:
        await _write(box, language, source)
        done = await box.run(language.build, timeout_s=self._at_most(language.build_timeout_s))
        compiler = language.build[0]
        if done.exit_code == NO_SUCH_PROGRAM and not await self._has(box, compiler):
            raise ConfigError(
                f"the sandbox has no {compiler}, which is to build {language.file}; use an image that has it"
            )
        return done

    async def _has(self, box: Box, compiler: str) -> bool:
        """Whether the sandbox has a compiler, whatever a build says: what it prints and its exit code may be the program's."""
        await box.clear()
        return (await box.run(["sh", "-c", 'command -v "$0"', compiler])).ok


def _fault_of_text(source: str) -> str | None:
    """Why a program cannot be written to a file; a model's text may hold half a surrogate pair, which no encoding has."""
    try:
        source.encode()
    except UnicodeEncodeError as error:
        return f"the program's text has no encoding: {error.reason}, at character {error.start}"
    return None


def _not_written(fault: str, tests: Sequence[Test], language: Language, *, fail_fast: bool) -> Verdict:
    """The verdict on a program that cannot be written: as on one that its language refuses to build, or to run."""
    refused = Status.BUILD_ERROR if language.build else Status.RUNTIME_ERROR
    results = []
    for index, test in enumerate(tests):
        status = Status.NOT_RUN if index and fail_fast and not language.build else refused
        results.append(TestResult(name=_name(test, index), status=status, message=fault, test_index=index))
    return Verdict(results=tuple(results), build_output=fault if language.build else "")


async def _write(box: Box, language: Language, source: str) -> None:
    await box.write(language.file, source)


async def _run(
    box: Box,
    language: Language,
    stdin: bytes,
    limits: Limits,
    *,
    args: Sequence[str] = (),
    only_files: Mapping[str, bytes] | None = None,
) -> Completed:
    program, *rest = language.run
    if program == "python3" and rest and not rest[0].startswith("-"):
        return await box.run_python(rest[0], args=[*rest[1:], *args], stdin=stdin, limits=limits, only_files=only_files)
    return await box.run([program, *rest, *args], stdin=stdin, limits=limits, only_files=only_files)


def _needs_second_box(test: Test) -> bool:
    return isinstance(test, AssertTest | TestFile) or (isinstance(test, IOTest) and isinstance(test.compare, Checker))


def _name(test: Test, index: int) -> str:
    return test.name or f"test {index + 1}"


def _check(source: str, tests: Sequence[Test], language: Language, limits: Limits, box_limits: Limits) -> None:
    if not isinstance(source, str):
        raise ConfigError(
            f"source = {shown(source)} must be a program's text; extract_code gives None where a reply has none"
        )
    check_argument("tests", tests, Sequence[Any])
    if not tests:
        raise ConfigError("tests is an empty list: there is nothing to judge by")
    for index, test in enumerate(tests):
        if not isinstance(test, Test):
            raise ConfigError(
                f"tests[{index}] = {shown(test)} must be an IOTest, CallTest, AssertTest or TestFile; load_tests makes them of "
                "those in a task"
            )
        changed_limits(limits, test.limits).check_within(box_limits)
        if isinstance(test, IOTest):
            _check_io(test, _name(test, index))
        elif language.build:
            raise ConfigError(f"a {type(test).__name__} calls Python functions; judge other languages by IOTest")
        if (need := needs(test)) is not None:
            raise ConfigError(f"{_name(test, index)} needs {need}")
        if isinstance(test, CallTest):
            try:
                encode([list(test.args), test.kwargs, test.expected])
            except RecursionError:
                raise ConfigError(
                    f"{_name(test, index)}, a CallTest of {test.function}: its data is nested too deep"
                ) from None
            except NotPlainError as error:
                raise ConfigError(f"{_name(test, index)}, a CallTest of {test.function}: {error}") from None


def _check_io(test: IOTest, name: str) -> None:
    texts = {"stdin": test.stdin, "stdout": test.stdout}
    if isinstance(test.compare, Checker):
        texts["compare.source"] = test.compare.source
    else:
        check_comparison(test.compare)
    for field, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{name}: {field} cannot be encoded as UTF-8 ({error.reason}, at {error.start})"
            ) from None
