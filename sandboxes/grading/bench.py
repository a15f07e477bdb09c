"""A program laid out in boxes, and each of its tests run there."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from agentrl.errors import ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes.box import Box
from agentrl.sandboxes.grading.answers import ExpectedOutput
from agentrl.sandboxes.grading.apart import compare_answer
from agentrl.sandboxes.grading.function_tests import grade_call, run_test_code
from agentrl.sandboxes.grading.statuses import status_of, tail
from agentrl.sandboxes.grading.verdict import (
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
    changed_limits,
)
from agentrl.sandboxes.inside.checker_main import CHECKER
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.protocol import Completed, Ended, Limits

CHECKER_MAIN = (Path(__file__).parents[1] / "inside" / "checker_main.py").read_text()
WALL_CLOCK_SLACK = 4.0
"""A test's timeout_s counts CPU seconds; its wall clock runs so many times longer, for sleepers and for a busy machine,"""
MIN_WALL_CLOCK_S = 2.0
"""and so long at least: a machine may have no time for a program for a second."""
NO_SUCH_PROGRAM = 127
"""The exit code of a run whose program is not there."""
TOGETHER = 16
"""So many runs of a program are asked for by one message,"""
TOGETHER_BYTES = 2**20
"""if their inputs, each with the program, are no larger than this."""


def wall_clock_s(limits: Limits) -> float:
    """How long a test may take by the clock, waiting for its turn and sleeping included."""
    return max(MIN_WALL_CLOCK_S, limits.timeout_s * WALL_CLOCK_SLACK)


class Bench:
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
    async def runs_together(self, tests: Sequence[Test]) -> AsyncIterator[Sequence[Process | None]]:
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
        """Grade one test; a file of tests gives a result for each of them. `run`: the program's, when it is started already."""
        limits = self._bounded(test.limits)
        if isinstance(test, CallTest):
            await self._box.clear()
            return [await grade_call(self._box, self._source, test, name, limits, self._deadline)]
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
        box = self._second_box
        if (fault := await self._lay_out(checker, box)) is not None:
            return Status.CHECKER_ERROR, fault
        done = await self._run_checker(checker, box, test, output)
        if done.ok:
            return Status.PASSED, ""
        said = tail(done.stdout + done.stderr)
        if done.exit_code in (1, 2):
            return Status.WRONG_ANSWER, said or f"the checker ended with exit code {done.exit_code}"
        timeout_s = (checker.limits or box.spec.limits).timeout_s
        cut_short = done.ended is Ended.TIMEOUT and done.duration_s < timeout_s  # by the verdict's deadline
        if done.exit_code is None and not cut_short and await self._is_due_to(output, checker, box, test):
            return (
                Status.WRONG_ANSWER,
                f"the checker ended with {done.ended} on what the program printed: {said}".rstrip(": "),
            )
        why = f"exit code {done.exit_code}" if done.exit_code is not None else str(done.ended)
        return Status.CHECKER_ERROR, f"the checker failed, with {why}: {said}".rstrip(": ")

    async def _lay_out(self, checker: Checker, box: Box) -> str | None:
        """Lay a checker out in a box, built; returns what is wrong with it."""
        language = checker.language
        if checker in self._built_checkers:
            await box.restore(self._built_checkers[checker])
            return None
        await box.clear()
        if language.build:
            done = await self._build(box, checker.source, language)
            if not done.ok:
                return f"the checker cannot be built: {tail(done.stdout + done.stderr)}"
            self._built_checkers[checker] = await box.snapshot()
        elif language == PYTHON:
            await box.write(CHECKER, checker.source)
            await _write(box, language, CHECKER_MAIN)
        else:
            await _write(box, language, checker.source)
        return None

    async def _run_checker(self, checker: Checker, box: Box, test: IOTest, output: bytes) -> Completed:
        for path, content in (("input", test.stdin), ("output", output), ("answer", test.stdout)):
            await box.write(path, content)
        limits = checker.limits or box.spec.limits
        limits = limits.but(timeout_s=self._at_most(limits.timeout_s))
        return await _run(box, checker.language, b"", limits, args=("input", "output", "answer"))

    async def _is_due_to(self, output: bytes, checker: Checker, box: Box, test: IOTest) -> bool:
        """Whether a checker that did not come to its end would have, had the program printed the answer: what it printed may keep a
        checker busy for ever. A test without an answer is believed to have a checker that ends."""
        answer = test.stdout.encode()
        if not answer.strip():
            return True
        if answer == output or await self._lay_out(checker, box) is not None:
            return False
        return (await self._run_checker(checker, box, test, answer)).exit_code is not None

    async def _build(self, box: Box, source: str, language: Language) -> Completed:
        await _write(box, language, source)
        done = await box.run(language.build, timeout_s=self._at_most(language.build_timeout_s))
        compiler = language.build[0]
        if done.exit_code == NO_SUCH_PROGRAM and not await self._has(box, compiler):
            raise ConfigError(
                f"the sandbox has no {compiler}, which is to build {language.file}; set sandbox.image to a Docker image that has it, "
                f"or install {compiler} here and take sandbox.backend = bubblewrap, whose programs are this machine's"
            )
        return done

    async def _has(self, box: Box, compiler: str) -> bool:
        """Whether the sandbox has a compiler, whatever a build says: what it prints and its exit code may be the program's."""
        await box.clear()
        return (await box.run(["sh", "-c", 'command -v "$0"', compiler])).ok


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
