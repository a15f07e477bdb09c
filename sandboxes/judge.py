"""From a program and its tests to a verdict that the program cannot forge.

What is expected never enters the box that the candidate runs in. Output and returned values leave it as plain data and are
compared here; test code that asserts runs in a second box, and a checker too. So a candidate that takes over its whole box can
still only choose what it answers, without knowing what the answer should be.

    candidate's box: program, inputs ── output, values ──►  comparison here             ─► Verdict
                          ▲                            ──►  checker in the second box   ─►
                          └──────── calls, values ───────►  test code in the second box ─►
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio.to_thread

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes.box import Box
from agentrl.sandboxes.function_tests import judge_call, run_test_code, status_of, tail
from agentrl.sandboxes.inside.plain_data import NotPlainError, encode
from agentrl.sandboxes.needs import needs
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.protocol import Completed, Limits
from agentrl.sandboxes.verdict import (
    PYTHON,
    AssertTest,
    CallTest,
    Checker,
    IOTest,
    Language,
    Status,
    Test,
    TestFile,
    TestResult,
    Verdict,
)

ATTEMPTS = 3
"""A box that is lost under a program is the engine's fault twice, and the program's the third time."""
WALL_CLOCK_SLACK = 4.0
"""A test's timeout_s counts CPU seconds; its wall clock runs so many times longer, for sleepers and for a busy machine."""
LONG_OUTPUT = 1 << 16
"""Bytes from which output is compared in a thread."""


async def judge(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    fail_fast: bool = False,
) -> Verdict:
    """Run a program against its tests in boxes of `pool`.

    Each test starts in an empty box with the program alone, under `limits` (default: the pool's), of which timeout_s counts the
    program's CPU seconds, so that neither waiting for a box nor a busy machine costs a program its verdict.
    With `fail_fast`, tests after the first that fails are not run.

    Whatever the program does is a result. Raises ConfigError for tests that make no sense, SandboxError when there is no box.
    """
    limits = limits or pool.spec.limits
    _check(tests, language, limits, pool.spec.limits)
    results: list[TestResult] = []
    build_output = ""
    index = losses = 0
    while index < len(tests):
        async with pool.take(2 if any(map(_needs_second_box, tests[index:])) else 1) as boxes:
            bench = _Bench(source, language, limits, boxes)
            try:
                build_output = await bench.build()
                while index < len(tests):
                    test, name = tests[index], _name(tests[index], index)
                    if bench.build_failed or (fail_fast and any(not result.passed for result in results)):
                        status = Status.BUILD_ERROR if bench.build_failed else Status.NOT_RUN
                        results.append(TestResult(name=name, status=status, message=build_output, test_index=index))
                    else:
                        results += [replace(result, test_index=index) for result in await bench.run(test, name)]
                    index, losses = index + 1, 0
            except SandboxError as error:
                # The box is gone, or so full that not even the program can be written to it.
                losses += 1
                if losses == ATTEMPTS:
                    status = Status.CHECKER_ERROR if len(boxes) == 2 and boxes[1].lost else Status.CRASHED
                    name = _name(tests[index], index)
                    results.append(TestResult(name=name, status=status, message=str(error), test_index=index))
                    index, losses = index + 1, 0
    return Verdict(results=tuple(results), build_output=build_output)


class _Bench:
    """A program laid out for its tests in boxes that are at hand."""

    def __init__(self, source: str, language: Language, limits: Limits, boxes: Sequence[Box]) -> None:
        self.build_failed = False
        self._source = source
        self._language = language
        self._limits = limits
        self._box = boxes[0]
        self._second_box = boxes[-1]
        self._built: bytes | None = None
        self._built_checkers: dict[Checker, bytes] = {}

    async def build(self) -> str:
        """Build the program where its language is built; returns what the build printed."""
        if not self._language.build:
            return ""
        done = await _build(self._box, self._source, self._language)
        self.build_failed = not done.ok
        if done.ok:
            self._built = await self._box.snapshot()
        return tail(done.stdout + done.stderr)

    async def run(self, test: Test, name: str) -> list[TestResult]:
        """Judge one test; a file of tests gives a result for each of them."""
        limits = test.limits or self._limits
        limits = limits.but(cpu_s=limits.cpu_s or limits.timeout_s, timeout_s=limits.timeout_s * WALL_CLOCK_SLACK)
        await self._box.clear()
        if isinstance(test, CallTest):
            return [await judge_call(self._box, self._source, test, name, limits)]
        if isinstance(test, AssertTest | TestFile):
            await self._second_box.clear()
            return await run_test_code(self._box, self._second_box, self._source, test, name, limits)
        return [await self._run_io(test, name, limits)]

    async def _run_io(self, test: IOTest, name: str, limits: Limits) -> TestResult:
        if self._built is not None:
            await self._box.restore(self._built)
        else:
            await _write(self._box, self._language, self._source)
        done = await _run(self._box, self._language, test.stdin.encode(), limits)
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
        output = stdout.decode(errors="replace")
        if isinstance(test.compare, Checker):
            return await self._check(test.compare, test, output)
        if len(stdout) > LONG_OUTPUT:
            difference = await anyio.to_thread.run_sync(test.compare, output, test.stdout)
        else:
            difference = test.compare(output, test.stdout)
        return (Status.WRONG_ANSWER, difference) if difference else (Status.PASSED, "")

    async def _check(self, checker: Checker, test: IOTest, output: str) -> tuple[Status, str]:
        box, language = self._second_box, checker.language
        if checker in self._built_checkers:
            await box.restore(self._built_checkers[checker])
        else:
            await box.clear()
            if language.build:
                done = await _build(box, checker.source, language)
                if not done.ok:
                    return Status.CHECKER_ERROR, f"the checker cannot be built: {tail(done.stdout + done.stderr)}"
                self._built_checkers[checker] = await box.snapshot()
            else:
                await _write(box, language, checker.source)
        for path, content in (("input", test.stdin), ("output", output), ("answer", test.stdout)):
            await box.write(path, content)
        done = await _run(box, language, b"", checker.limits or box.spec.limits, args=("input", "output", "answer"))
        if done.ok:
            return Status.PASSED, ""
        rejected = done.exit_code in (1, 2)
        return Status.WRONG_ANSWER if rejected else Status.CHECKER_ERROR, tail(done.stdout + done.stderr) or done.ended


async def _write(box: Box, language: Language, source: str) -> None:
    # A model's text may hold half a surrogate pair, which no encoding has.
    await box.write(language.file, source.encode(errors="replace"))


async def _build(box: Box, source: str, language: Language) -> Completed:
    await _write(box, language, source)
    return await box.run(language.build, timeout_s=language.build_timeout_s)


async def _run(box: Box, language: Language, stdin: bytes, limits: Limits, args: Sequence[str] = ()) -> Completed:
    program, *rest = language.run
    if program == "python3" and rest and not rest[0].startswith("-"):
        return await box.run_python(rest[0], args=[*rest[1:], *args], stdin=stdin, limits=limits)
    return await box.run([program, *rest, *args], stdin=stdin, limits=limits)


def _needs_second_box(test: Test) -> bool:
    return isinstance(test, AssertTest | TestFile) or (isinstance(test, IOTest) and isinstance(test.compare, Checker))


def _name(test: Test, index: int) -> str:
    return test.name or f"test {index + 1}"


def _check(tests: Sequence[Test], language: Language, limits: Limits, box_limits: Limits) -> None:
    for index, test in enumerate(tests):
        (test.limits or limits).check_within(box_limits)
        if not isinstance(test, IOTest) and language.build:
            raise ConfigError(f"a {type(test).__name__} calls Python functions; judge other languages by IOTest")
        if (need := needs(test)) is not None:
            raise ConfigError(f"{_name(test, index)} needs {need}")
        if isinstance(test, TestFile):
            for path in test.files:
                if path.startswith("/") or ".." in path.split("/") or path.split("/")[0].split(".")[0] == test.module:
                    raise ConfigError(
                        f"{_name(test, index)}, files: {path!r} must be a path below the test file's folder, other than the"
                        f" candidate's module {test.module}"
                    )
        if isinstance(test, CallTest):
            try:
                encode([list(test.args), test.kwargs, test.expected])
            except NotPlainError as error:
                raise ConfigError(f"{_name(test, index)}, a CallTest of {test.function}: {error}") from None
