"""Tests that need a program's functions, as the host runs them: a call, test code apart from the program, and test code inside with it.

call    program ◄── a call, an answer ── host, which compares
apart   program ◄── calls, answers ── host ◄── calls, answers ──► test runner ── report ──► host
inside  program and test runner in one process ── report ──► host
"""

from __future__ import annotations

import ast
import json
import reprlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.sandboxes.grading.comparison import same_value
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.program_names import libraries_of, names_of_program
from agentrl.sandboxes.grading.program_process import ProgramProcess
from agentrl.sandboxes.grading.statuses import EARLIER_FAILED, status_of, tail
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, TestFile
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.inside.plain import MAX_BYTES, decode, encode, read_line
from agentrl.sandboxes.process import LongLineError
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import EndReason, ExecResult, Limits

RUNNER = "from agentrl.sandboxes.inside.runner import main; main()"
TEST_FILE = "test_solution.py"
START_S = 10.0
"""Beside the time of its tests, so long may a process of test code take to start on a busy machine."""
TEST_CODE_OUTPUT_MB = 64.0
MAX_REPORT_BYTES = 4 << 20
SHORT_BYTES = 1 << 14
"""Longer answers are compared in a thread."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LONGER = 64
"""So many times the bytes of the expected value may an answer take that is right."""


async def grade_call(sandbox: Sandbox, source: str, test: CallTest, limits: Limits, deadline: float) -> TestResult:
    """Call one function once, and compare what comes back. `deadline` is a time of the event loop's clock."""
    call = {
        "name": test.function,
        "args": encode(list(test.args)),
        "kwargs": {"dict": [[name, encode(value)] for name, value in test.kwargs.items()]},
        "argument": test.argument,
    }
    await sandbox.clear()
    async with ProgramProcess(sandbox, source, "solution", limits, deadline) as program:
        answer = await program.load()
        if answer.startswith(b'{"names"'):
            answer = await program.ask(json.dumps(call).encode() + b"\n")
    status, message = program.failure or await _compared(test, answer)
    return TestResult(name=test.name, status=status, message=message, duration_s=program.spent_s, **used(program.usage))


async def _compared(test: CallTest, answer: bytes) -> tuple[Status, str]:
    if len(answer) <= SHORT_BYTES:
        return _compare(test, answer)
    return await in_thread(_compare, test, answer)


def _compare(test: CallTest, answer: bytes) -> tuple[Status, str]:
    if not answer.startswith(b'{"raised"') and len(answer) > LONGER * len(json.dumps(encode(test.expected))) + 4096:
        return Status.WRONG_ANSWER, "the answer is larger than any that is right"
    try:
        content = read_line(answer)
        if "raised" in content:
            return Status.RUNTIME_ERROR, str(content["raised"][2])
        if "fault" in content:
            return Status.WRONG_ANSWER, f"the program gives {content['fault']}"
        got = decode(content["ok"])
        if same_value(got, test.expected, test.tolerance, nan_equal=test.nan_equal, wrapped=test.wrapped):
            return Status.PASSED, ""
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        return Status.WRONG_ANSWER, f"the answer makes no sense: {error}"
    return Status.WRONG_ANSWER, f"{_shown(got)}, expected {_shown(test.expected)}"


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__}"


@dataclass(frozen=True)
class CodeRun:
    """A run of test code, in the last of `boxes`, with the program there too if it is to be `inside`, else in the first."""

    boxes: Sequence[Sandbox]
    source: str
    test: AssertTest | TestFile
    trust: Trust
    limits: Limits
    deadline: float
    """By the event loop's clock."""
    fail_fast: bool

    @property
    def left_s(self) -> float:
        """Seconds that are left of the verdict's."""
        return max(0.01, self.deadline - anyio.current_time())

    @property
    def module(self) -> str:
        """Name of the program's module."""
        return self.test.module if isinstance(self.test, TestFile) else "solution"


async def grade_test_code(run: CodeRun) -> list[TestResult]:
    """Run test code, and return a result for each of its tests."""
    for box in run.boxes:
        await box.clear()
    files: dict[str, str | bytes] = {}
    if isinstance(run.test, TestFile):
        files = {**run.test.files, TEST_FILE: run.test.code}
    if run.trust is Trust.INSIDE:
        files[f"{run.module}.py"] = run.source
    for path, content in files.items():
        await run.boxes[-1].write(path, content)
    job = _job(run)
    return await (_run_inside if run.trust is Trust.INSIDE else _run_apart)(run, job)


def _job(run: CodeRun) -> dict[str, Any]:
    """Return what the test runner is to do, see `inside/runner.py`."""
    test = run.test
    job = {
        "nonce": secrets.token_hex(),
        "trust": run.trust,
        "kind": test.framework if isinstance(test, TestFile) else "assert",
        "name": test.name,
        "module": run.module,
        "names": sorted({*names_of_program(test).values()}),
        "imports": sorted(_imports(run)),
        "timeout_s": run.limits.timeout_s,
        "fail_fast": run.fail_fast,
    }
    if isinstance(test, TestFile):
        return job
    of_asserts = {"libraries": sorted(libraries_of(test)), "entry_point": test.entry_point}
    return {**job, **of_asserts, "prelude": test.prelude, "code": test.code}


def _imports(run: CodeRun) -> set[str]:
    """Return the modules that test code imports from elsewhere, and what may be one: `from unittest import mock`."""
    names = set()
    tree = parsed(run.test.code)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    beside = run.test.files if isinstance(run.test, TestFile) else ()
    own = {path.partition("/")[0].partition(".")[0] for path in beside} | {run.module}
    return {name for name in names if name.partition(".")[0] not in own}


async def _run_inside(run: CodeRun, job: dict[str, Any]) -> list[TestResult]:
    tests = max(1, len(test_functions(run.test)))
    limits = replace(
        run.limits,
        timeout_s=min(START_S + run.limits.timeout_s * tests, run.left_s),
        cpu_s=None if isinstance(run.test, TestFile) else (run.limits.cpu_s or run.limits.timeout_s) + START_S,
    )
    async with await run.boxes[-1].start_python(RUNNER, limits=limits, framework=job["kind"]) as process:
        await process.send(json.dumps(job).encode() + b"\n")
        done = await process.wait()
    for line in done.stdout.splitlines(keepends=True):
        if line.startswith(job["nonce"].encode()):
            return _results(run, line[len(job["nonce"]) :], done)
    status, message = status_of(done)
    if status is Status.PASSED:
        status, message = Status.RUNTIME_ERROR, "the program has left before the tests were done"
    return [TestResult(name=run.test.name, status=status, message=message, duration_s=done.duration_s, **used(done))]


async def _run_apart(run: CodeRun, job: dict[str, Any]) -> list[TestResult]:
    nonce, number, answered = job["nonce"].encode(), 0, False
    box = run.boxes[-1]
    test_limits = box.spec.limits.but(timeout_s=run.left_s, output_mb=TEST_CODE_OUTPUT_MB)
    limits = replace(run.limits, cpu_s=None) if isinstance(run.test, TestFile) else run.limits
    async with (
        ProgramProcess(run.boxes[0], run.source, run.module, limits, run.deadline) as program,
        await box.start_python(RUNNER, limits=test_limits, framework=job["kind"]) as tests,
    ):
        await tests.send(json.dumps(job).encode() + b"\n")
        await tests.send(await program.ask_for(None))
        fault = ""
        try:
            while line := await tests.read_line(MAX_BYTES + 100):
                if line.startswith(nonce):
                    return _results(run, line[len(nonce) :], replace(program.usage, duration_s=program.spent_s))
                head, _, request = line.partition(b" ")
                if int(head) != number:  # another test, whose time is its own
                    number, program.spent_s = int(head), 0.0
                    if program.failure is not None:
                        await program.load()
                answered = True
                await tests.send(await program.ask_for(request))
            done = await tests.wait()
        except (LongLineError, ValueError) as error:
            done, fault = ExecResult(end_reason=EndReason.EXIT), str(error)
    status, message = status_of(done)
    if program.failure is not None:
        status, message = program.failure
    elif not answered or done.end_reason is EndReason.EXIT:  # tests that end by themselves do so whatever the program
        status = Status.CHECKER_ERROR
        message = f"the test code ended before it was done: {message or fault or tail(done.stderr)}"
    return [TestResult(name=run.test.name, status=status, message=message, duration_s=program.spent_s)]


def _results(run: CodeRun, report: bytes, done: ExecResult) -> list[TestResult]:
    """Return what a report says, and a failure for each test function that stands in the file and not in the report."""
    name = run.test.name
    if len(report) > MAX_REPORT_BYTES:
        return [TestResult(name=name, status=Status.OUTPUT_LIMIT, message="a report that is too long")]
    told = json.loads(report)
    results = [
        TestResult(name=one or name, status=Status(status), message=text) for one, status, text in told["results"]
    ]
    failed = any(not result.passed for result in results)
    missing = test_functions(run.test) - {*told["functions"]} if not failed or run.fail_fast else set()
    status, message = (Status.NOT_RUN, EARLIER_FAILED) if failed else (Status.RUNTIME_ERROR, "it has not run")
    results += [TestResult(name=one, status=status, message=message) for one in sorted(missing)]
    if not results:
        return [TestResult(name=name, status=Status.CHECKER_ERROR, message="the test code has no tests")]
    return results if len(results) > 1 else [replace(results[0], duration_s=done.duration_s, **used(done))]


def used(done: ExecResult) -> dict[str, Any]:
    """Return the fields of a result that say what a run took."""
    return {"cpu_s": done.cpu_s, "peak_memory_bytes": done.peak_memory_bytes}


def test_functions(test: AssertTest | TestFile) -> set[str]:
    """Return the names of the test functions that stand in a file of tests: a run that ends before them is no pass."""
    tree = parsed(test.code) if isinstance(test, TestFile) else None
    body = [] if tree is None else tree.body
    of_unittest = isinstance(test, TestFile) and test.framework == "unittest"
    cases: set[str] = set()
    found = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if any(base.endswith("TestCase") for base in bases) or bases & cases:
                cases.add(node.name)
            elif of_unittest or not node.name.startswith("Test"):
                continue
            found |= {one.name for one in node.body if isinstance(one, _FUNCTION) and one.name.startswith("test")}
        elif isinstance(node, _FUNCTION) and node.name.startswith("test") and not of_unittest:
            made = [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list]
            found |= set() if "fixture" in made else {node.name}
    return set() if any(isinstance(node, _FUNCTION) and node.name == "load_tests" for node in body) else found
