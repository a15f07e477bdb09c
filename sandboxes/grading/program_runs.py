"""Programs that are graded from outside: they read and print, or a function of theirs is called; the host compares.

build ─► run, once a test ─► output ─► Comparison, or Checker (in a second sandbox)
         call, once a test ─► value ─► same_value
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import shown
from agentrl.sandboxes.grading.comparison import same_value
from agentrl.sandboxes.grading.tests import PYTHON, CallTest, Checker, IOTest, Language, Test
from agentrl.sandboxes.grading.verdict import SHOWN_CHARACTERS, Status, TestResult, status_of, tail
from agentrl.sandboxes.inside.plain import decode, encode, read_line
from agentrl.sandboxes.sandbox import MB, ExecResult, Limits, Sandbox, as_bytes
from agentrl.system.tasks import in_thread

CALLS = "from agentrl.sandboxes.inside.program_calls import main; main()"
CHECKER = "from agentrl.sandboxes.inside.checker_main import main; main()"
ANSWERS_MB = 16
"""What a program whose functions are called may answer and print in all."""
SHORT_BYTES = 1 << 14
"""A longer output is compared in a thread."""
ROOM = 2
"""So many times the bytes of the expected output may a program print, whatever `output_mb`."""
WALL_CLOCK_SLACK = 4.0
"""A test's timeout_s counts CPU seconds; its wall clock runs so many times longer, for sleepers and for a busy machine,"""
MIN_WALL_CLOCK_S = 2.0
"""and so long at least: a machine may have no time for a program for a second."""


def wall_clock_s(limits: Limits) -> float:
    """Return how long a test may take by the clock, waiting for its turn and sleeping included."""
    return max(MIN_WALL_CLOCK_S, limits.timeout_s * WALL_CLOCK_SLACK)


@dataclass(frozen=True)
class Grading:
    """A program, and how it is graded. Its runs take sandboxes: the first is the program's, the last that of checkers and of test code."""

    source: str
    language: Language
    limits: Limits
    fail_fast: bool
    deadline_s: float
    """Of the verdict: what runs longer is cancelled."""

    def limits_of(self, test: Test) -> Limits:
        """Return the limits of a test's run."""
        limits = test.limits_of(self.limits)
        return limits.changed(cpu_s=limits.cpu_s or limits.timeout_s, timeout_s=wall_clock_s(limits))


def result_of(test: Test, status: Status, message: str, done: ExecResult) -> TestResult:
    """Return the result of a test with what its run took."""
    took = {name: getattr(done, name) for name in ("duration_s", "cpu_s", "peak_memory_bytes")}
    return TestResult(name=test.name, status=status, message=message, **took)


async def build(grading: Grading, sandbox: Sandbox) -> tuple[bytes | None, str]:
    """Build the program where its language is built; return its files, which are None if that failed, and what the build printed.

    Raises:
        ConfigError: The sandbox does not have the compiler.
    """
    language = grading.language
    if not language.build:
        return b"", ""
    compiler = language.build[0]
    if not (await sandbox.run(["sh", "-c", 'command -v "$0"', compiler])).ok:
        raise ConfigError(
            f"the sandbox has no {compiler}, which is to build {language.file}; set `sandbox.image` to a Docker image that has it, "
            f"or install {compiler} here and take `sandbox.backend` = bubblewrap, whose programs are this machine's"
        )
    await sandbox.write(language.file, as_bytes(grading.source))
    done = await sandbox.run(language.build, timeout_s=language.build_timeout_s)
    built = await sandbox.snapshot() if done.ok else None
    return built, (done.stdout + done.stderr).decode(errors="replace").strip()[:SHOWN_CHARACTERS]


async def run_io(grading: Grading, test: IOTest, sandboxes: Sequence[Sandbox], built: bytes) -> TestResult:
    """Run the program, or what was `built` of it, once, and compare what it prints."""
    sandbox, language, stdin = sandboxes[0], grading.language, as_bytes(test.stdin)
    files = None if built else {language.file: as_bytes(grading.source)}
    if built:
        await sandbox.restore(built)
    limits = grading.limits_of(test)
    limits = limits.changed(output_mb=max(limits.output_mb, ROOM * len(test.stdout.encode()) / MB))
    if language == PYTHON:
        done = await sandbox.run_python(language.file, stdin=stdin, limits=limits, only_files=files)
    else:
        done = await sandbox.run(language.run, stdin=stdin, limits=limits, only_files=files)
    status, message = status_of(done)
    if status is Status.PASSED and isinstance(test.compare, Checker):
        status, message = await _check(sandboxes[-1], test.compare, test, done.stdout)
    elif status is Status.PASSED:
        status, message = await _compared(
            len(done.stdout) + len(test.stdout), lambda: _compare_output(test, done.stdout)
        )
    return result_of(test, status, message, done)


async def run_call(grading: Grading, test: CallTest, sandbox: Sandbox) -> TestResult:
    """Call one function of the program once, and compare what comes back."""
    call = {"name": test.function, "args": encode(list(test.args)), "kwargs": encode(test.kwargs), "value_only": True}
    lines = [json.dumps({"source": grading.source, "module": "solution"}), json.dumps(call), ""]
    limits = grading.limits_of(test)
    limits = limits.changed(output_mb=max(limits.output_mb, ANSWERS_MB))
    stdin = "\n".join(lines).encode()
    done = await sandbox.run_python(code=CALLS, stdin=stdin, limits=limits, only_files={})
    status, message = status_of(done)
    if status is Status.PASSED:
        status, message = await _compared(len(done.stdout), lambda: _compare_answer(test, done.stdout))
    return result_of(test, status, message, done)


async def _compared(size: int, compare: Callable[[], tuple[Status, str]]) -> tuple[Status, str]:
    """Return what a comparison of so many bytes comes to: in a thread if that may take long."""
    return compare() if size <= SHORT_BYTES else await in_thread(compare)


def _compare_output(test: IOTest, stdout: bytes) -> tuple[Status, str]:
    assert not isinstance(test.compare, Checker)
    difference = test.compare(stdout.decode(errors="replace"), test.stdout)
    return (Status.WRONG_ANSWER, difference) if difference else (Status.PASSED, "")


def _compare_answer(test: CallTest, stdout: bytes) -> tuple[Status, str]:
    answer = stdout[stdout.rfind(b"\n", 0, -1) + 1 :]
    if answer.startswith(b'{"names"') or not answer:
        return Status.RUNTIME_ERROR, "the program has left before it answered"
    try:
        content = read_line(answer)
        if "raised" in content:
            return Status.RUNTIME_ERROR, str(content["raised"][2])
        if "fault" in content:
            return Status.WRONG_ANSWER, f"the program gives {content['fault']}"
        got = decode(content["ok"])
        if same_value(got, test.expected, test.tolerance, wrapped=test.wrapped):
            return Status.PASSED, ""
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        return Status.WRONG_ANSWER, f"the answer makes no sense: {error}"
    return Status.WRONG_ANSWER, f"{shown(got)}, expected {shown(test.expected)}"


async def _check(sandbox: Sandbox, checker: Checker, test: IOTest, output: bytes) -> tuple[Status, str]:
    given: dict[str, str | bytes] = {"checker.py": checker.source, "input": test.stdin, "answer": test.stdout}
    given["output"] = output
    files = {path: as_bytes(content) for path, content in given.items()}
    done = await sandbox.run_python(code=CHECKER, args=("input", "output", "answer"), only_files=files)
    if done.ok:
        return Status.PASSED, ""
    printed = tail(done.stdout + done.stderr)
    if done.exit_code is None:  # what it was given may keep a checker busy, or break it
        return Status.WRONG_ANSWER, f"the checker ended by {done.end_reason} on this output: {printed}".rstrip(": ")
    if done.exit_code in (1, 2):
        return Status.WRONG_ANSWER, printed or f"the checker ended with exit code {done.exit_code}"
    return Status.CHECKER_ERROR, f"the checker failed, with exit code {done.exit_code}: {printed}".rstrip(": ")
