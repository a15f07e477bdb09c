"""Examine a set of code tasks before anybody trains on it: is each task solved by its reference, always, and by nobody who cheats?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import ConfigError, one_line
from agentrl.sandboxes.grading.cheaters import cheaters
from agentrl.sandboxes.grading.code_tasks import CodeTask, load_code_task, task_name
from agentrl.sandboxes.grading.do_nothing import measured_baseline
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.tests import changed_limits, wall_clock_s
from agentrl.sandboxes.grading.verdict import Verdict
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.seams import Limits

PARTIAL_MAX = 0.5
"""A cheater may earn so much of a partial reward. Of half the tests, `True` may be the answer."""
LONGEST_REASON = 300
SLOW_SHARE = 0.5
"""Share of its time limit above which a reference is called slow."""


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
    warnings: tuple[str, ...] = ()
    partial: bool = False
    """Whether a share of the tests is rewarded."""
    tests: int = 0
    """Results of the reference, or of the program that does nothing."""
    free_tests: int = 0
    """How many of them programs pass that do nothing."""
    rewards: Mapping[str, float]
    """What each cheater that got something was rewarded."""
    passed_by: tuple[str, ...] = ()
    """The cheaters that pass every test."""
    time_share: float = 0.0
    """The share of its time limit that the slowest test of the reference takes."""

    @property
    def kept(self) -> bool:
        """Whether the task is fit to be trained on."""
        return not self.faults


async def vet(
    tasks: Sequence[Mapping[str, Any]],
    *,
    pool: SandboxPool,
    limits: Limits | None = None,
    runs: int = 5,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, several at the same time.

    Args:
        tasks: in any of the forms of `load_code_task`.
        pool: where programs run.
        limits: of a test without limits of its own. Default: the pool's.
        runs: how often the reference is run, to see whether it always passes.
        on_report: called with each report as it is finished.

    Returns:
        A report for each task, in their order.

    Raises:
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
        ConfigError: `runs` is less than 1.
    """
    if runs < 1:
        raise ConfigError(f"runs = {runs} must be 1 or more")

    async def one(index: int, task: Mapping[str, Any]) -> TaskReport:
        return await vet_task(task, index, pool=pool, limits=limits, runs=runs)

    return await each_task(tasks, one, at_once=pool.size, on_report=on_report)


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
        try:
            reports[index] = await examine(index, task)
        finally:
            slots.release()
        if on_report is not None:
            on_report(reports[index])

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            await slots.acquire()
            group.start_soon(one, index, task)
    return [reports[index] for index in range(len(tasks))]


async def vet_task(
    task: Mapping[str, Any], index: int = 0, *, pool: SandboxPool, limits: Limits | None = None, runs: int = 5
) -> TaskReport:
    """Examine one task: see `vet`."""
    report = TaskReport(index=index, name=one_line(task_name(task, index), 60), rewards={})
    try:
        code_task = await in_thread(load_code_task, task, index)
    except ConfigError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(error))
    report = replace(report, partial=code_task.partial)
    if not code_task.tests:
        return with_fault(report, FaultKind.NO_TESTS, "the task has no tests")
    limits = limits or pool.spec.limits
    try:
        baseline = await measured_baseline(code_task.tests, pool=pool, language=code_task.language, limits=limits)
        report = replace(report, tests=sum(map(len, baseline.known.values())), free_tests=baseline.free_count)
        report = await _run_reference(report, code_task, pool, limits, runs)
        if code_task.partial and not baseline.earnable:
            detail = f"a program that does nothing passes all {baseline.free_count} tests"
            report = with_fault(report, FaultKind.FREE, detail)
        if any(fault.kind is FaultKind.REFERENCE_FAILS for fault in report.faults):
            return report  # nobody trains on it, whoever else passes
        return await _run_cheaters(report, code_task, pool, limits)
    except ConfigError as error:
        return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))


async def _run_reference(
    report: TaskReport, task: CodeTask, pool: SandboxPool, limits: Limits, runs: int
) -> TaskReport:
    if task.reference is None:
        detail = "no reference solution (a field solution or reference), so nothing shows that the tests can be passed"
        return with_fault(report, FaultKind.NO_REFERENCE, detail)
    verdicts = [
        await grade(task.reference, task.tests, pool=pool, language=task.language, limits=limits) for _ in range(runs)
    ]
    share = max(_time_share(verdict, task, limits) for verdict in verdicts)
    report = replace(report, tests=len(verdicts[0].results), time_share=round(share, 3))
    if share > SLOW_SHARE:
        warning = f"slow: the reference takes {share:.0%} of the time limit"
        report = replace(report, warnings=(*report.warnings, warning))
    if report.free_tests:
        warning = f"{report.free_tests} of {report.tests} tests are passed by doing nothing"
        report = replace(report, warnings=(*report.warnings, warning))
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if not failed:
        return await _run_public_tests(report, task.reference, task, pool, limits)
    first = next(result for result in failed[0].results if not result.passed)
    detail = f"{first.name}: {first.status} {reason(first.message)}"
    if len(failed) < runs or len({tuple(result.passed for result in verdict.results) for verdict in verdicts}) > 1:
        return with_fault(report, FaultKind.FLAKY, f"fails {len(failed)} of {runs} times: {detail}")
    return with_fault(report, FaultKind.REFERENCE_FAILS, detail)


async def _run_public_tests(
    report: TaskReport, reference: str, task: CodeTask, pool: SandboxPool, limits: Limits
) -> TaskReport:
    if not task.public_tests:
        return report
    verdict = await grade(reference, task.public_tests, pool=pool, language=task.language, limits=limits)
    wrong = next((result for result in verdict.results if not result.passed), None)
    if wrong is None:
        return report
    detail = f"public tests, {wrong.name}: {wrong.status} {reason(wrong.message)}"
    return with_fault(report, FaultKind.REFERENCE_FAILS, detail)


def reason(message: str) -> str:
    """Return the line of a result's message that says what was wrong: of a traceback the last, of pytest's report the first of its own."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("(The program")]
    pytests = [line[1:].strip() for line in lines if line.startswith("E  ")]
    line = next(iter(pytests or lines[-1:]), "")
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return clean if len(clean) <= LONGEST_REASON else clean[: LONGEST_REASON - 1] + "…"


async def _run_cheaters(report: TaskReport, task: CodeTask, pool: SandboxPool, limits: Limits) -> TaskReport:
    rewards: dict[str, float] = {}
    passed_by: list[str] = []
    baseline = await measured_baseline(task.tests, pool=pool, language=task.language, limits=limits)
    for name, source in (await in_thread(cheaters, task)).items():
        verdict = await grade(
            source, task.tests, pool=pool, language=task.language, limits=limits, fail_fast=not task.partial
        )
        if verdict.passed:
            passed_by.append(name)
        reward = verdict.with_baseline(baseline).fraction if task.partial else float(verdict.passed)
        if reward:
            rewards[name] = round(reward, 4)
    report = replace(report, rewards=rewards, passed_by=tuple(passed_by))
    allowed = PARTIAL_MAX if task.partial else 0.0
    rewarded = [name for name, reward in rewards.items() if reward > allowed]
    if rewarded:
        shown = ", ".join(f"{name!r} gets {rewards[name]:.2g}" for name in rewarded[:5])
        more = f" and {len(rewarded) - 5} more" if len(rewarded) > 5 else ""
        report = with_fault(report, FaultKind.CHEATER, shown + more)
    return report


def _time_share(verdict: Verdict, task: CodeTask, limits: Limits) -> float:
    """Return the largest share of its time limit that a test takes: of CPU seconds, or of the wall clock's longer limit."""
    shares = [0.0]
    for result in verdict.results:
        allowed = changed_limits(limits, task.tests[result.test_index].limits)
        shares += [result.cpu_s / allowed.timeout_s, result.duration_s / wall_clock_s(allowed)]
    return max(shares)


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
    """Return what was found, as JSON: figures over all tasks, then every task that is refused or has a warning, and why."""
    return {
        "tasks": len(reports),
        "kept": sum(report.kept for report in reports),
        "faults": dict(Counter(fault.kind.value for report in reports for fault in report.faults).most_common()),
        "warned": sum(bool(report.warnings) for report in reports),
        "passed_by_a_cheater": sum(bool(report.passed_by) for report in reports),
        "cheaters": dict(Counter(name for report in reports for name in report.passed_by).most_common()),
        "largest_partial_reward": max(
            (max(report.rewards.values(), default=0.0) for report in reports if report.partial), default=0.0
        ),
        "refused_tasks": [asdict(report) for report in reports if not report.kept],
        "warned_tasks": [asdict(report) for report in reports if report.kept and report.warnings],
    }
