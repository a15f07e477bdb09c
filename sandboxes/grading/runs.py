"""How a test is run and what comes of it, for each trust.

outside  build ─► run, once a test ─► output ─► Comparison, or Checker (in a second sandbox)
                  call, once a test ─► value ─► same_value
apart    program ◄── calls, answers ── host ◄── calls, answers ──► test runner ── report ──► host
inside   program and test runner in one process ── report ──► host

A report is a line that begins with a nonce, and names every test function that stands in the file.
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import shown
from agentrl.sandboxes.grading.comparison import same_value
from agentrl.sandboxes.grading.tests import PYTHON, CallTest, Checker, CodeTest, IOTest, Language, Test, TestFile
from agentrl.sandboxes.grading.trust import Trust, functions_of, imports_of, libraries_of, names_of_program
from agentrl.sandboxes.grading.verdict import EARLIER_FAILED, SHOWN_CHARACTERS, Status, TestResult, status_of, tail
from agentrl.sandboxes.inside.frameworks import ANY
from agentrl.sandboxes.inside.plain import MAX_BYTES, decode, encode, read_line
from agentrl.sandboxes.inside.program_calls import CALLS
from agentrl.sandboxes.inside.remote_program import PROGRAMS
from agentrl.sandboxes.linked_sandbox import LongLineError, Process
from agentrl.sandboxes.sandbox import MB, EndReason, ExecResult, Limits, Sandbox, as_bytes
from agentrl.system.tasks import in_thread

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
RUNNER = "from agentrl.sandboxes.inside.runner import main; main()"
OUTPUT_MB = 64.0
"""What test code, or the program that it calls, may print and answer in all."""
SILENCE_S = 10.0
"""By so much a test, whose begin is a line of output, may exceed its time limit before the whole process is killed: it may block every signal."""


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


async def run_code(grading: Grading, test: CodeTest, trust: Trust, sandboxes: Sequence[Sandbox]) -> list[TestResult]:
    """Run test code, and return a result for each of its tests."""
    limits = grading.limits_of(test)
    job = {name: getattr(test, name) for name in ("name", "framework", "module", "entry_point", "prelude", "code")}
    job |= {"names": sorted({*names_of_program(test).values()}), "libraries": sorted(libraries_of(test))}
    job |= {"imports": sorted(imports_of(test)), "fail_fast": grading.fail_fast}
    job |= {"timeout_s": limits.timeout_s, "cpu_s": limits.cpu_s, "trust": trust, "nonce": secrets.token_hex()}
    inside = trust is Trust.INSIDE
    given = {**test.files, **({f"{test.module}.py": grading.source} if inside else {})}
    files = {path: as_bytes(content) for path, content in given.items()}
    return await (_run_inside if inside else _run_apart)(grading, test, job, files, sandboxes)


async def _run_inside(
    grading: Grading, test: CodeTest, job: dict[str, Any], files: dict[str, bytes], sandboxes: Sequence[Sandbox]
) -> list[TestResult]:
    limits = replace(grading.limits_of(test), timeout_s=grading.deadline_s, cpu_s=None)  # each test has its own there
    stdin, framework = json.dumps(job).encode() + b"\n", job["framework"]
    silence_s = grading.limits_of(test).timeout_s + SILENCE_S
    done = await sandboxes[-1].run_python(
        code=RUNNER, limits=limits, framework=framework, stdin=stdin, only_files=files, silence_s=silence_s
    )
    nonce = job["nonce"].encode()
    for line in done.stdout.splitlines(keepends=True):
        if line.startswith(nonce) and line.endswith(b"\n"):  # else its end was cut off with the output
            return _results(test, line[len(nonce) :], done)
    status, message = status_of(done)
    if status is Status.PASSED:
        status, message = Status.RUNTIME_ERROR, "the program has left before the tests were done"
    elif done.signal == signal.SIGVTALRM:  # the clock of `inside/report.py` for code that no exception ends
        status, message = Status.TIME_LIMIT, ""
    return [result_of(test, status, message, done)]


async def _run_apart(
    grading: Grading, test: CodeTest, job: dict[str, Any], files: dict[str, bytes], sandboxes: Sequence[Sandbox]
) -> list[TestResult]:
    nonce, number, answered, box = job["nonce"].encode(), 0, False, sandboxes[-1]
    limits = box.spec.limits.changed(timeout_s=grading.deadline_s, output_mb=OUTPUT_MB)
    async with (
        AsyncExitStack() as processes,
        await box.start_python(RUNNER, limits=limits, framework=job["framework"], only_files=files) as tests,
    ):
        program = _Program(grading, test, sandboxes[0], processes)
        await tests.send(json.dumps(job).encode() + b"\n")
        await tests.send(await program.load())
        fault = ""
        try:
            while line := await tests.read_line(MAX_BYTES + 100):
                if line.startswith(nonce):
                    return _results(test, line[len(nonce) :], program.took)
                head, _, request = line.partition(b" ")
                if int(head) != number:  # another test, whose time is its own
                    number, program.spent_s = int(head), 0.0
                    if program.failure is not None:
                        await program.load()
                answered = True
                await tests.send(await program.ask(request))
            done = await tests.wait()
        except (LongLineError, ValueError) as error:
            done, fault = ExecResult(end_reason=EndReason.EXIT), str(error)
    status, message = status_of(done)
    if program.failure is not None:
        status, message = program.failure
    elif not answered or done.end_reason is EndReason.EXIT:  # tests that end by themselves do so whatever the program
        status = Status.CHECKER_ERROR
        message = f"the test code ended before it was done: {message or fault or tail(done.stderr)}"
    return [result_of(test, status, message, program.took)]


class _Program:
    """The process of a program that test code calls, asked within the time of a test. It is the only one in `processes`."""

    def __init__(self, grading: Grading, test: CodeTest, sandbox: Sandbox, processes: AsyncExitStack) -> None:
        self.failure: tuple[Status, str] | None = None
        """Why the process has ended, if it has."""
        self.spent_s = 0.0
        """How long the program has been waited for, in this test."""
        self._sandbox = sandbox
        self._job = json.dumps({"source": grading.source, "module": test.module}).encode() + b"\n"
        limits = grading.limits_of(test)
        self._time_s = limits.timeout_s
        self._limits = replace(
            limits,
            timeout_s=grading.deadline_s,  # each call is bounded by its test's time
            cpu_s=None if isinstance(test, TestFile) else limits.cpu_s,
            output_mb=max(limits.output_mb, OUTPUT_MB),
        )
        self._processes = processes
        self._process: Process | None = None

    @property
    def took(self) -> ExecResult:
        """Return what is known of its run."""
        return ExecResult(end_reason=EndReason.KILLED, duration_s=self.spent_s)

    async def load(self) -> bytes:
        """Start the process anew, and return its answer to the program."""
        await self._processes.aclose()
        self.failure, self.spent_s = None, 0.0
        started = await self._sandbox.start_python(CALLS, limits=self._limits, only_files={})
        self._process = await self._processes.enter_async_context(started)
        return await self.ask(self._job)

    async def ask(self, request: bytes) -> bytes:
        """Return the answer to one request, as test code reads it: the program cannot write what is the host's to say.

        That is "a" and the program's line, or "x" and {"ended": [status, message]} of `failure`.
        """
        started, process = anyio.current_time(), self._process
        if self.failure is None and process is not None:
            try:
                with anyio.fail_after(self._time_s - self.spent_s):
                    await process.send(request)
                    answer = await process.read_line(MAX_BYTES)
                    if answer is not None and answer.endswith(b"\n"):
                        return PROGRAMS + answer
                    status, message = status_of(await process.wait())
                    left = Status.RUNTIME_ERROR, "the program has left before it answered"
                    self.failure = left if status is Status.PASSED else (status, message)
            except TimeoutError:
                self.failure = Status.TIME_LIMIT, ""
            except LongLineError:
                self.failure = Status.OUTPUT_LIMIT, f"the program answers more than {MAX_BYTES >> 20} MB at once"
            finally:
                self.spent_s += anyio.current_time() - started
        return b"x" + json.dumps({"ended": self.failure}).encode() + b"\n"


def _results(test: CodeTest, line: bytes, done: ExecResult) -> list[TestResult]:
    """Return what a report says, and a failure for each test function that stands in the file and not in the report."""
    report = json.loads(line)
    results = [
        TestResult(name=name or test.name, status=Status(status), message=message)
        for name, status, message in report["results"]
    ]
    passed = {result.passed for result in results}
    # Where none passes, as in a file that cannot be loaded, no share is to be made smaller.
    missing = set() if ANY in report["functions"] or passed == {False} else functions_of(test) - {*report["functions"]}
    status, message = (Status.NOT_RUN, EARLIER_FAILED) if False in passed else (Status.RUNTIME_ERROR, "it has not run")
    results += [TestResult(name=name, status=status, message=message) for name in sorted(missing)]
    if not results:
        return [result_of(test, Status.CHECKER_ERROR, "the test code has no tests", done)]
    if len(results) == 1:
        return [replace(result_of(test, results[0].status, results[0].message, done), name=results[0].name)]
    return results
