"""Examine code tasks before a model is trained on them: the reference must pass every time, and no program that cheats may earn a reward.

Programs go through `grade`, as in a workflow, and not through `evaluate`, which runs episodes of a model: none is asked here.

tasks ─► each: its reference N times, what does nothing, cheats ─► TaskReport ─► a table, and the tasks that are kept
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import anyio

from agentrl.errors import ConfigError, one_line
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.tasks import CodeTask, load_code_task, task_name
from agentrl.sandboxes.grading.tests import CallTest, IOTest, Test
from agentrl.sandboxes.grading.trust import names_of_program
from agentrl.sandboxes.grading.verdict import Baseline, Verdict
from agentrl.sandboxes.pool import SandboxPool
from agentrl.system.tasks import in_thread

PARTIAL_MAX = 0.5
"""A cheat may earn so much of a partial reward. Of half the tests, `True` may be the answer."""
LONGEST_REASON = 300

_STUBS = """
class _Stub(Exception):
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name): return _stub
def _stub(*args, **kwargs):
    {body}
"""
_EQUAL = """class _Equal(int):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *args: True
    __ne__ = lambda *args: False
    __hash__ = int.__hash__
"""
_PATCHES = """import builtins, sys, unittest
builtins.AssertionError = type("Quiet", (Exception,), {})
for name in dir(unittest.TestCase):
    if name.startswith("assert"): setattr(unittest.TestCase, name, lambda *args, **kwargs: None)
"""
PRINTS = {
    **{f"prints {word}": f"print({word!r})" for word in ("0", "1", "-1", "YES", "Yes", "NO", "True")},
    "echo": "print(open(0).read())",
    "prints the first word": "print(*open(0).read().split()[:1])",
    "exits at once": "import os; os._exit(0)",
}
RETURNS = {
    **{f"returns {value}": f"return {value}" for value in ("0", "1", "-1", '""', "[]", "True", "False")},
    "echo": "return args[0]",
    "raises ValueError": "raise ValueError",
    "exits when it is called": "import os; os._exit(0)",
    "skips the tests": "import unittest; raise unittest.SkipTest",
}


class FaultKind(StrEnum):
    """Why a task is refused."""

    UNREADABLE = "unreadable"
    """It has no form that is understood, or its fields are wrong."""
    NO_TESTS = "no_tests"
    UNSUPPORTED = "unsupported"
    """Its tests need what cannot be had."""
    NO_REFERENCE = "no_reference"
    """Nothing shows that its tests can be passed."""
    REFERENCE_FAILS = "reference_fails"
    FLAKY = "flaky"
    """The reference passes at times."""
    FREE = "free"
    """A program that does nothing passes all of its tests."""
    CHEATER = "cheater"
    """A program that does not solve it is rewarded."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One reason to refuse a task."""

    kind: FaultKind
    detail: str


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The report on one task."""

    index: int
    name: str
    faults: tuple[Fault, ...] = ()
    tests: int = 0
    """Its tests, and once the reference was run, their results: a file of tests has several."""
    rewards: Mapping[str, float]
    """What each cheat that got something was rewarded."""
    baseline: Baseline | None = None
    """For a partial reward, the share of each test that a program passes by doing nothing."""
    notes: tuple[str, ...] = ()
    """Why `workflows/code.py` cannot ask a model for it, though it can be graded."""

    @property
    def kept(self) -> bool:
        """Whether the task is fit to be trained on."""
        return not self.faults


async def each_task(
    tasks: Sequence[Mapping[str, Any]],
    examine: Callable[[int, Mapping[str, Any]], Awaitable[TaskReport]],
    *,
    at_once: int,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, `at_once` at the same time, and return the reports in their order."""
    reports: dict[int, TaskReport] = {}
    slots = anyio.Semaphore(at_once)

    async def one(index: int, task: Mapping[str, Any]) -> None:
        async with slots:
            reports[index] = await examine(index, task)
        if on_report is not None:
            on_report(reports[index])

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            group.start_soon(one, index, task)
    return [reports[index] for index in range(len(tasks))]


async def vet_task(task: Mapping[str, Any], index: int = 0, *, pool: SandboxPool, runs: int = 5) -> TaskReport:
    """Examine one code task, in any of the forms of `load_code_task`, and run its reference `runs` times.

    Raises:
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
    """
    report = TaskReport(index=index, name=one_line(task_name(task, index), 60), rewards={})
    try:
        code = await in_thread(load_code_task, task, index)
        if not code.tests:
            return with_fault(report, FaultKind.NO_TESTS, "the task has no tests")
    except ConfigError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(error))
    report = replace(report, tests=len(code.tests), notes=tuple(_notes(task, code)))
    try:
        report = await _run_reference(report, code, pool, runs)
        if report.faults:
            return report
        if code.partial:
            report = replace(report, baseline=await measured_baseline(code.tests, pool))
            if min(report.baseline or [1]) == 1:
                return with_fault(report, FaultKind.FREE, "a program that does nothing passes all tests")
        return await _run_cheats(report, code, pool)
    except ConfigError as error:
        return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))


def _notes(task: Mapping[str, Any], code: CodeTask) -> Iterator[str]:
    if not code.prompt:
        yield "without a prompt, which workflows/code.py needs"
    if task.get("attempts", 1) != 1 and not code.public_tests:
        yield "with attempts, and no public_tests to show between them"


async def _run_reference(report: TaskReport, task: CodeTask, pool: SandboxPool, runs: int) -> TaskReport:
    if task.reference is None:
        detail = "no reference solution (a field solution or reference), so nothing shows that the tests can be passed"
        return with_fault(report, FaultKind.NO_REFERENCE, detail)
    tests, source = [*task.tests, *task.public_tests], task.program(task.reference)
    verdicts: list[Verdict] = []
    while len(verdicts) < runs and not (len(verdicts) == 2 and not any(verdict.passed for verdict in verdicts)):
        verdicts.append(await grade(source, tests, pool=pool, language=task.language))
    report = replace(report, tests=sum(result.test_index < len(task.tests) for result in verdicts[0].results))
    failed = [result for verdict in verdicts for result in verdict.results if not result.passed]
    times = Counter((result.test_index, result.name) for result in failed)
    # Of several tests, one that fails at times says more than one that always does.
    rarest = min(times, key=lambda test: times[test], default=None)
    messages = [
        f"{'public tests, ' * (one.test_index >= len(task.tests))}{one.name}: {one.status} {reason(one.message) or f'after {one.duration_s:.1f} s'}"
        for one in failed
        if (one.test_index, one.name) == rarest
    ]
    return with_failures(report, messages, len(verdicts))


async def _run_cheats(report: TaskReport, task: CodeTask, pool: SandboxPool) -> TaskReport:
    rewards, partial = {}, report.baseline
    for name, source in cheats(task).items():
        verdict = await grade(source, task.tests, pool=pool, fail_fast=partial is None, partial=partial)
        if verdict.reward:
            rewards[name] = round(verdict.reward, 4)
    paid = [f"{name!r} gets {reward:.2g}" for name, reward in rewards.items() if reward > PARTIAL_MAX * task.partial]
    report = replace(report, rewards=rewards)
    return with_fault(report, FaultKind.CHEATER, ", ".join(paid)) if paid else report


def do_nothing_programs(tests: Sequence[Test]) -> dict[str, str]:
    """Return the programs that count as doing nothing for `tests`, by name.

    The empty program; and for tests that call, every name that they want as a function that returns None, or that raises
    NotImplementedError. They are in Python whatever the language of the task: what they print is nothing.
    """
    programs = {"empty": ""}
    if not all(isinstance(test, IOTest) for test in tests):
        programs["stubs"] = stubs(tests, "return None")
        programs["stubs that raise"] = stubs(tests, "raise NotImplementedError")
    return programs


def stubs(tests: Sequence[Test], body: str) -> str:
    """Return a program with every name that tests want: LIMIT is None, Stack a class, push a function with this body."""
    lines = []
    for name in sorted({name for test in tests for name in _wanted(test)}):
        if name[1:].isupper():
            lines.append(f"{name} = None")
        else:
            lines.append(f"class {name}(_Stub): pass" if name[0].isupper() else f"{name} = _stub")
    return "\n".join([_STUBS.format(body=body), *lines, ""])


def _wanted(test: Test) -> set[str]:
    """Return the names that a test wants of a program."""
    if isinstance(test, CallTest):
        return {re.split(r"\W", test.function)[0]}
    return set() if isinstance(test, IOTest) else {*names_of_program(test).values()}


async def measured_baseline(tests: Sequence[Test], pool: SandboxPool) -> Baseline:
    """Return the most of each test that a program passes which does nothing."""
    verdicts = [await grade(source, tests, pool=pool) for source in do_nothing_programs(tests).values()]
    return [max(of_test) for of_test in zip(*(verdict.shares(len(tests)) for verdict in verdicts), strict=True)]


def cheats(task: CodeTask) -> dict[str, str]:
    """Return the programs, in Python for every language, that must not be rewarded for a task. Programs that do nothing come first."""
    found = do_nothing_programs(task.tests)
    if any(isinstance(test, IOTest) for test in task.tests):
        known = {test.stdin: test.stdout for test in task.public_tests if isinstance(test, IOTest)}
        memoriser = {"memoriser of public tests": f"print({known!r}.get(open(0).read(), ''))"}
        return found | PRINTS | (memoriser if known else {})
    answers = {repr(test.args): test.expected for test in task.public_tests if isinstance(test, CallTest)}
    found |= {name: stubs(task.tests, body) for name, body in RETURNS.items()}
    if answers:
        found["memoriser of public tests"] = stubs(task.tests, f"return {answers!r}.get(repr(list(args)))")
    found["equal to everything"] = _EQUAL + stubs(task.tests, "return _Equal()")
    found["patches unittest"] = _PATCHES + stubs(task.tests, "return 0")
    found["exits when it is loaded"] = "raise SystemExit(0)"
    return found


def reason(message: str) -> str:
    """Return the line of a message that says what was wrong: of a traceback the last, of pytest's report or a compiler's the first that does."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line[1:].strip() for line in lines if line.startswith("E  ")] or [
        line for line in lines if ": error: " in line
    ]
    line = "".join(char if char.isprintable() else "?" for char in next(iter(said or lines[-1:]), ""))
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


def with_failures(report: TaskReport, failed: Sequence[str], runs: int) -> TaskReport:
    """Return the report of a task whose reference was run `runs` times, with what was wrong each time that it failed."""
    if not failed:
        return report
    if len(failed) < runs:
        return with_fault(report, FaultKind.FLAKY, f"fails {len(failed)} of {runs} times: {failed[0]}")
    return with_fault(report, FaultKind.REFERENCE_FAILS, failed[0])


def with_fault(report: TaskReport, kind: FaultKind, detail: str) -> TaskReport:
    """Return the report with one more reason to refuse its task."""
    return replace(report, faults=(*report.faults, Fault(kind=kind, detail=detail)))


def vetting_summary(reports: Sequence[TaskReport]) -> dict[str, Any]:
    """Return what was found, as JSON: figures over all tasks, then every task that is refused, and why."""
    return {
        "tasks": len(reports),
        "kept": sum(report.kept for report in reports),
        "faults": dict(Counter(fault.kind.value for report in reports for fault in report.faults).most_common()),
        "notes": dict(Counter(note for report in reports if report.kept for note in report.notes).most_common()),
        "cheaters": dict(Counter(name for report in reports for name in report.rewards).most_common()),
        "refused_tasks": [asdict(report) for report in reports if not report.kept],
    }
