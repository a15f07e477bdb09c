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
from dataclasses import replace
from typing import Any

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.sandboxes.grading.comparison import same_value
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.program_names import libraries_of, names_of_program
from agentrl.sandboxes.grading.program_process import ProgramProcess
from agentrl.sandboxes.grading.statuses import DEADLINE_OVER, status_of, tail
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, TestFile
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.inside.plain import MAX_BYTES, decode, encode, read_line
from agentrl.sandboxes.process import LongLineError
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import EndReason, ExecResult, Limits

RUNNER = "from agentrl.sandboxes.inside.test_runner import main; main()"
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
    return TestResult(
        name=test.name, status=status, message=message, duration_s=program.spent_s, **_used(program.usage)
    )


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


async def grade_test_code(
    sandboxes: Sequence[Sandbox],
    source: str,
    test: AssertTest | TestFile,
    trust: Trust,
    limits: Limits,
    deadline: float,
    *,
    fail_fast: bool,
) -> list[TestResult]:
    """Run test code in the last of `sandboxes`, with the program there too if it is to be `inside`, else in the first.

    `deadline` is a time of the event loop's clock.
    """
    job = _job(test, trust, limits, fail_fast=fail_fast)
    for sandbox in sandboxes:
        await sandbox.clear()
    for path, content in _files(test, source if trust is Trust.INSIDE else None).items():
        await sandboxes[-1].write(path, content)
    run = _run_inside if trust is Trust.INSIDE else _run_apart
    return await run(sandboxes, source, test, job, limits, deadline)


def _files(test: AssertTest | TestFile, source: str | None) -> dict[str, str | bytes]:
    """Return the files of a run: the tests', and the program's if it is inside."""
    files: dict[str, str | bytes] = {}
    if isinstance(test, TestFile):
        files = {**test.files, TEST_FILE: test.code}
    return files if source is None else {**files, f"{_module(test)}.py": source}


def _module(test: AssertTest | TestFile) -> str:
    return test.module if isinstance(test, TestFile) else "solution"


def _job(test: AssertTest | TestFile, trust: Trust, limits: Limits, *, fail_fast: bool) -> dict[str, Any]:
    is_file = isinstance(test, TestFile)
    return {
        "nonce": secrets.token_hex(),
        "trust": trust,
        "kind": test.framework if is_file else "assert",
        "name": test.name,
        "module": _module(test),
        "names": [*names_of_program([test])],
        "libraries": [] if is_file else sorted(libraries_of(test)),
        "imports": sorted(_imports(test)),
        "entry_point": None if is_file else test.entry_point,
        "prelude": "" if is_file else test.prelude,
        "code": "" if is_file else test.code,
        "timeout_s": limits.timeout_s,
        "fail_fast": fail_fast,
    }


def _imports(test: AssertTest | TestFile) -> set[str]:
    """Return the modules that test code imports from elsewhere, and what may be one: `from unittest import mock`."""
    names = set()
    for node in ast.walk(parsed(test.code) or ast.Module()):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    beside = test.files if isinstance(test, TestFile) else ()
    own = {path.partition("/")[0].partition(".")[0] for path in beside} | {_module(test)}
    return {name for name in names if name.partition(".")[0] not in own}


async def _run_inside(
    sandboxes: Sequence[Sandbox],
    source: str,
    test: AssertTest | TestFile,
    job: dict[str, Any],
    limits: Limits,
    deadline: float,
) -> list[TestResult]:
    expected = test_functions(test)
    run_s = min(START_S + limits.timeout_s * max(1, len(expected)), max(0.01, deadline - anyio.current_time()))
    cpu_s = None if isinstance(test, TestFile) or limits.cpu_s is None else limits.cpu_s + START_S
    limits = replace(limits, timeout_s=run_s, cpu_s=cpu_s)
    async with await sandboxes[-1].start_python(RUNNER, limits=limits) as process:
        await process.send(json.dumps(job).encode() + b"\n")
        done = await process.wait()
    report = next(
        (line for line in done.stdout.splitlines(keepends=True) if line.startswith(job["nonce"].encode())), None
    )
    if report is None:
        status, message = status_of(done)
        if status is Status.PASSED:
            status, message = Status.RUNTIME_ERROR, "the program has left before the tests were done"
        return [TestResult(name=test.name, status=status, message=message, duration_s=done.duration_s, **_used(done))]
    return _results(report, job, expected, test, done)


async def _run_apart(
    sandboxes: Sequence[Sandbox],
    source: str,
    test: AssertTest | TestFile,
    job: dict[str, Any],
    limits: Limits,
    deadline: float,
) -> list[TestResult]:
    nonce, expected = job["nonce"].encode(), test_functions(test)
    box = sandboxes[-1]
    left_s = max(0.01, deadline - anyio.current_time())
    test_limits = box.spec.limits.but(timeout_s=left_s, output_mb=TEST_CODE_OUTPUT_MB)
    program_limits = replace(limits, cpu_s=None) if isinstance(test, TestFile) else limits
    report, number, answered = b"", 0, False
    async with (
        ProgramProcess(sandboxes[0], source, job["module"], program_limits, deadline) as program,
        await box.start_python(RUNNER, limits=test_limits) as tests,
    ):
        await tests.send(json.dumps(job).encode() + b"\n")
        await tests.send(await program.ask_for(None))
        try:
            while not report.startswith(nonce) and (report := await tests.read_line(MAX_BYTES + 100) or b""):
                if not report.startswith(nonce):
                    head, _, request = report.partition(b" ")
                    if int(head) != number:  # another test, whose time is its own
                        number, program.spent_s = int(head), 0.0
                        if program.failure is not None:
                            await program.load()
                    answered = True
                    await tests.send(await program.ask_for(request))
            done = ExecResult(end_reason=EndReason.EXIT, exit_code=0) if report else await tests.wait()
        except (LongLineError, ValueError) as error:
            done = ExecResult(end_reason=EndReason.EXIT, exit_code=1, stderr=str(error).encode())
    if report.startswith(nonce):
        used = replace(program.usage, duration_s=program.spent_s)
        return _results(report, job, expected, test, used)
    status, message = status_of(done)
    if done.end_reason is EndReason.TIMEOUT:
        message = DEADLINE_OVER
    if program.failure is not None:
        status, message = program.failure
    elif not answered or status is Status.PASSED:  # tests that end by themselves do so whatever the program
        status, message = (
            Status.CHECKER_ERROR,
            f"the test code ended before it was done: {message or tail(done.stderr)}",
        )
    return [TestResult(name=test.name, status=status, message=message, duration_s=program.spent_s)]


def _results(
    report: bytes, job: dict[str, Any], expected: set[str], test: AssertTest | TestFile, used: ExecResult
) -> list[TestResult]:
    """Return what a report says, and a failure for each test function that stands in the file and not in the report."""
    told = (
        json.loads(report[len(job["nonce"]) :]) if len(report) <= MAX_REPORT_BYTES else {"results": [], "functions": []}
    )
    results = [
        TestResult(name=name or test.name, status=Status(status), message=text)
        for name, status, text in told["results"]
    ]
    failed = any(not result.passed for result in results)
    for name in sorted(expected - {*told["functions"]}) if not failed or job["fail_fast"] else ():
        status, message = (
            (Status.NOT_RUN, "an earlier test failed") if failed else (Status.RUNTIME_ERROR, "it has not run")
        )
        results.append(TestResult(name=name, status=status, message=message))
    if not results:
        results = [TestResult(name=test.name, status=Status.CHECKER_ERROR, message="the test code has no tests")]
    if len(results) == 1:
        return [replace(results[0], duration_s=used.duration_s, **_used(used))]
    return results


def _used(done: ExecResult) -> dict[str, Any]:
    return {"cpu_s": done.cpu_s, "peak_memory_bytes": done.peak_memory_bytes}


def test_functions(test: AssertTest | TestFile) -> set[str]:
    """Return the names of the test functions that stand in a file of tests: a run that ends before them is no pass."""
    tree = parsed(test.code) if isinstance(test, TestFile) else None
    body = [] if tree is None else tree.body
    cases: set[str] = set()
    found = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if any(base.endswith("TestCase") for base in bases) or bases & cases:
                cases.add(node.name)
            elif not node.name.startswith("Test"):
                continue
            found |= {one.name for one in node.body if isinstance(one, _FUNCTION) and one.name.startswith("test")}
        elif isinstance(node, _FUNCTION) and node.name.startswith("test"):
            found.add(node.name)
    return set() if any(isinstance(node, _FUNCTION) and node.name == "load_tests" for node in body) else found
