"""A program laid out in sandboxes, and each of its tests run there."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from agentrl.concurrency.threads import in_users_thread
from agentrl.errors import ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes.grading.code_run import CodeRun, grade_call, grade_test_code, used
from agentrl.sandboxes.grading.comparison import Comparison
from agentrl.sandboxes.grading.statuses import status_of, tail
from agentrl.sandboxes.grading.tests import (
    PYTHON,
    CallTest,
    Checker,
    IOTest,
    Language,
    Test,
    changed_limits,
    wall_clock_s,
)
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.inside.checker_main import CHECKER
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.sandbox import Sandbox, as_bytes
from agentrl.sandboxes.seams import ExecResult, Limits

CHECKER_MAIN = (Path(__file__).parents[1] / "inside" / "checker_main.py").read_text()
NO_SUCH_PROGRAM = 127
"""The exit code of a run whose program is not there."""
SHORT_BYTES = 1 << 14
"""A longer output is compared in a thread."""
TOGETHER = 16
"""So many runs of a program are asked for by one message,"""
TOGETHER_BYTES = 2**20
"""if their inputs, each with the program, are no larger than this."""


class Bench:
    """A program laid out for its tests in sandboxes that are at hand."""

    def __init__(
        self,
        source: str,
        language: Language,
        limits: Limits,
        sandboxes: Sequence[Sandbox],
        *,
        deadline: float,
        fail_fast: bool,
    ) -> None:
        self.build_failed = False
        self._source = source
        self._language = language
        self._limits = limits
        self._sandbox = sandboxes[0]
        self._second_sandbox = sandboxes[-1]
        self._deadline = deadline
        self._fail_fast = fail_fast
        self._built: bytes | None = None
        self._built_checkers: dict[Checker, bytes] = {}

    @property
    def over(self) -> bool:
        """Whether the verdict's deadline is over."""
        return anyio.current_time() >= self._deadline

    def _at_most(self, timeout_s: float) -> float:
        """Return a time limit that ends with the deadline."""
        return min(timeout_s, max(0.01, self._deadline - anyio.current_time()))

    async def build(self) -> str:
        """Build the program where its language is built; returns what the build printed.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        if not self._language.build:
            return ""
        done = await self._build(self._sandbox, self._source, self._language)
        self.build_failed = not done.ok
        if done.ok:
            try:
                self._built = await self._sandbox.snapshot()
            except SandboxLostError:
                raise
            except SandboxError as error:  # it left more than a snapshot may hold
                self.build_failed = True
                return str(error)
        return tail(done.stdout) + tail(done.stderr)

    @asynccontextmanager
    async def runs_together(self, tests: Sequence[Test]) -> AsyncIterator[Sequence[Process | None]]:
        """Yield the program's runs for the first of `tests`, where those can be asked for together; else [None], for one test."""
        together = self._together(tests)
        if len(together) < 2:
            yield [None]
            return
        async with self._sandbox.python_runs(
            self._language.file,
            [as_bytes(test.stdin) for test in together],
            limits=self._bounded(together[0]),
            only_files=self._files(),
            within_s=self._at_most(math.inf),
        ) as runs:
            yield runs

    def _files(self) -> dict[str, bytes]:
        return {self._language.file: as_bytes(self._source)}

    def _together(self, tests: Sequence[Test]) -> list[IOTest]:
        """Return the first of `tests` that one message can ask for."""
        found: list[IOTest] = []
        if self._built is not None or list(self._language.run) != ["python3", self._language.file]:
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

    def _bounded(self, test: Test) -> Limits:
        limits = changed_limits(self._limits, test.limits)
        return limits.but(cpu_s=limits.cpu_s or limits.timeout_s, timeout_s=self._at_most(wall_clock_s(limits)))

    async def run(self, test: Test, trust: Trust, run: Process | None) -> list[TestResult]:
        """Grade one test; a file of tests gives a result for each of them. `run`: the program's, when it is started already."""
        limits = self._bounded(test)
        if isinstance(test, IOTest):
            return [await self._run_io(test, limits, run)]
        if isinstance(test, CallTest):
            return [await grade_call(self._sandbox, self._source, test, limits, self._deadline)]
        boxes = self._sandbox, self._second_sandbox
        run_of = CodeRun(boxes, self._source, test, trust, limits, self._deadline, self._fail_fast)
        return await grade_test_code(run_of)

    async def _run_io(self, test: IOTest, limits: Limits, run: Process | None) -> TestResult:
        if run is not None:
            done = await run.wait()
        elif self._built is not None:
            await self._sandbox.restore(self._built)
            done = await _run(self._sandbox, self._language, as_bytes(test.stdin), limits)
        else:
            done = await _run(self._sandbox, self._language, as_bytes(test.stdin), limits, only_files=self._files())
        status, message = status_of(done)
        if status is Status.PASSED:
            status, message = await self._compare(test, done.stdout)
        return TestResult(name=test.name, status=status, message=message, duration_s=done.duration_s, **used(done))

    async def _compare(self, test: IOTest, stdout: bytes) -> tuple[Status, str]:
        if isinstance(test.compare, Checker):
            return await self._check(test.compare, test, stdout)
        output = stdout.decode(errors="replace")
        short = len(stdout) + len(test.stdout) <= SHORT_BYTES and isinstance(test.compare, Comparison)
        try:
            with anyio.CancelScope(deadline=self._deadline):
                compared = partial(_difference, test.compare, output, test.stdout)
                said = compared() if short else await in_users_thread(compared)
                return (Status.WRONG_ANSWER, said) if said else (Status.PASSED, "")
            return Status.TIME_LIMIT, "the verdict's deadline was over before the output was compared"
        except Exception as error:  # a comparison of the user's
            return Status.CHECKER_ERROR, f"the comparison failed: {type(error).__name__}: {error}"

    async def _check(self, checker: Checker, test: IOTest, output: bytes) -> tuple[Status, str]:
        sandbox = self._second_sandbox
        if (fault := await self._lay_out(checker, sandbox)) is not None:
            return Status.CHECKER_ERROR, fault
        done = await self._run_checker(checker, sandbox, test, output)
        if done.ok:
            return Status.PASSED, ""
        said = tail(done.stdout + done.stderr)
        if done.exit_code is None:  # what it was given may keep a checker busy, or break it
            return Status.WRONG_ANSWER, f"the checker ended by {done.end_reason} on this output: {said}".rstrip(": ")
        if done.exit_code in (1, 2):
            return Status.WRONG_ANSWER, said or f"the checker ended with exit code {done.exit_code}"
        return Status.CHECKER_ERROR, f"the checker failed, with exit code {done.exit_code}: {said}".rstrip(": ")

    async def _lay_out(self, checker: Checker, sandbox: Sandbox) -> str | None:
        """Lay a checker out in a sandbox, built; returns what is wrong with it."""
        language = checker.language
        if checker in self._built_checkers:
            await sandbox.restore(self._built_checkers[checker])
            return None
        await sandbox.clear()
        if language.build:
            done = await self._build(sandbox, checker.source, language)
            if not done.ok:
                return f"the checker cannot be built: {tail(done.stdout + done.stderr)}"
            self._built_checkers[checker] = await sandbox.snapshot()
        elif language == PYTHON:
            await sandbox.write(CHECKER, checker.source)
            await sandbox.write(language.file, CHECKER_MAIN)
        else:
            await sandbox.write(language.file, checker.source)
        return None

    async def _run_checker(self, checker: Checker, sandbox: Sandbox, test: IOTest, output: bytes) -> ExecResult:
        for path, content in (("input", test.stdin), ("output", output), ("answer", test.stdout)):
            await sandbox.write(path, content)
        limits = checker.limits or sandbox.spec.limits
        limits = limits.but(timeout_s=self._at_most(limits.timeout_s))
        return await _run(sandbox, checker.language, b"", limits, args=("input", "output", "answer"))

    async def _build(self, sandbox: Sandbox, source: str, language: Language) -> ExecResult:
        await sandbox.write(language.file, source)
        done = await sandbox.run(language.build, timeout_s=self._at_most(language.build_timeout_s))
        compiler = language.build[0]
        if done.exit_code == NO_SUCH_PROGRAM and not await self._has(sandbox, compiler):
            raise ConfigError(
                f"the sandbox has no {compiler}, which is to build {language.file}; set `sandbox.image` to a Docker image that has it, "
                f"or install {compiler} here and take `sandbox.backend` = bubblewrap, whose programs are this machine's"
            )
        return done

    async def _has(self, sandbox: Sandbox, compiler: str) -> bool:
        """Return whether the sandbox has a compiler, whatever a build says: what it prints and its exit code may be the program's."""
        await sandbox.clear()
        return (await sandbox.run(["sh", "-c", 'command -v "$0"', compiler])).ok


def _difference(compare: Callable[[str, str], object], output: str, expected: str) -> str:
    """Return what a comparison says.

    Raises:
        TypeError: It says nothing that is text.
    """
    said = compare(output, expected)
    if not isinstance(said, str):
        raise TypeError(f"it returned {said!r}, and not what differs")
    return said


async def _run(
    sandbox: Sandbox,
    language: Language,
    stdin: bytes,
    limits: Limits,
    *,
    args: Sequence[str] = (),
    only_files: Mapping[str, bytes] | None = None,
) -> ExecResult:
    program, *rest = language.run
    if program == "python3" and rest and not rest[0].startswith("-"):
        return await sandbox.run_python(
            rest[0], args=[*rest[1:], *args], stdin=stdin, limits=limits, only_files=only_files
        )
    return await sandbox.run([program, *rest, *args], stdin=stdin, limits=limits, only_files=only_files)
