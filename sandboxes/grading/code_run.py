"""Test code that runs: apart from the program, or inside one process with it.

apart   program ◄── calls, answers ── host ◄── calls, answers ──► test runner ── report ──► host
inside  program and test runner in one process ── report ──► host

The report is a line that begins with a nonce, and names every test function that stands in the file.
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import anyio

from agentrl.sandboxes.grading.code_reading import functions_of, imports_of, libraries_of, names_of_program
from agentrl.sandboxes.grading.program_runs import CALLS, Grading, result_of
from agentrl.sandboxes.grading.tests import CodeTest, TestFile
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.grading.verdict import EARLIER_FAILED, Status, TestResult, status_of, tail
from agentrl.sandboxes.inside.frameworks import ANY
from agentrl.sandboxes.inside.plain import MAX_BYTES
from agentrl.sandboxes.inside.remote_program import PROGRAMS
from agentrl.sandboxes.linked_sandbox import LongLineError, Process
from agentrl.sandboxes.sandbox import EndReason, ExecResult, Sandbox, as_bytes

RUNNER = "from agentrl.sandboxes.inside.runner import main; main()"
OUTPUT_MB = 64.0
"""What test code, or the program that it calls, may print and answer in all."""
SILENCE_S = 10.0
"""By so much a test, whose begin is a line of output, may exceed its time limit before the whole process is killed: it may block every signal."""


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
