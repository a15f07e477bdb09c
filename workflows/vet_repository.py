"""Examine repositories with hidden tests before anybody trains on them: the reference solution must always pass, and nothing else may.

agentrl vet swe:ROWS ─► for each task: its solution passes, doing nothing fails, planted files fail ─► a report
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync as in_thread
from pydantic import ValidationError

from agentrl.errors import ConfigError, SandboxError, SandboxLostError, one_line
from agentrl.rollout.task_faults import why_unusable
from agentrl.rollout.task_type import first_problem
from agentrl.sandboxes import SandboxPool, SandboxSpec, open_pool
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport, each_task, with_failures, with_fault
from agentrl.sandboxes.seams import Backend
from agentrl.workflows.harness import HarnessTask
from agentrl.workflows.hidden_tests import run_hidden_tests
from agentrl.workflows.repository import with_files, with_patch

PLANTED = {
    "conftest.py": """import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
""",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "pytest.py": "def main(*args, **options):\n    return 0\n",
    "pytest.ini": "[pytest]\naddopts = --collect-only\n",
}
"""Files with which an agent might have its tests pass."""


def is_repository_task(task: Mapping[str, Any]) -> bool:
    """Return whether a task is one of `harness.py`."""
    return "repository" in task and "tests" in task


async def vet_repository_tasks(
    tasks: Sequence[Mapping[str, Any]],
    *,
    backend: str | Backend = "auto",
    spec: SandboxSpec,
    at_once: int = 2,
    runs: int = 5,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, `at_once` at the same time.

    Args:
        tasks: Tasks of `harness.py`, as `swe:ROWS` gives them.
        backend: Where their tests run.
        spec: The sandbox of a task that names no image; limits are the task's own.
        at_once: How many tasks are examined at the same time.
        runs: How often the tests of the solution are run, to see whether they always pass.
        on_report: Called with each report as it is finished.

    Returns:
        A report for each task, in their order.

    Raises:
        SandboxError: No sandbox can be started.
    """

    async def one(index: int, given: Mapping[str, Any]) -> TaskReport:
        report = TaskReport(index=index, name=one_line(given.get("name") or index, 60), rewards={})
        if (why := why_unusable(given)) is not None:
            return with_fault(report, FaultKind.UNREADABLE, one_line(why))
        try:
            task = HarnessTask.model_validate(given)
            start = await in_thread(task.repository.packed)
            solved = await in_thread(with_patch, start, task.solution) if task.solution else None
        except ValidationError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(first_problem(error)))
        except ConfigError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(error))
        own = replace(spec, image=task.image or spec.image, limits=task.grading_limits())
        opened = False
        try:
            async with open_pool(own, backend=backend, size=1) as pool:
                opened = True
                report = await _run_solution(report, task, pool, start, solved, runs)
                return await _run_cheaters(report, task, pool, start)
        except SandboxLostError:
            raise
        except SandboxError as error:
            if not opened and task.image is None:
                raise  # no task can have a sandbox
            return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))

    return await each_task(tasks, one, at_once=at_once, on_report=on_report)


async def _run_solution(
    report: TaskReport, task: HarnessTask, pool: SandboxPool, start: bytes, solved: bytes | None, runs: int
) -> TaskReport:
    if solved is None:
        detail = "no solution (the patch of a row), so nothing shows that the tests can be passed"
        return with_fault(report, FaultKind.NO_REFERENCE, detail)
    failed = []
    for _ in range(runs):
        async with pool.take() as (sandbox,):
            result = await run_hidden_tests(sandbox, start, solved, task.tests)
        report = replace(report, tests=result.total)
        if not result.all_passed:
            names = f", not {', '.join(one_line(name, 100) for name in result.not_passed)}" if result.not_passed else ""
            failed.append(f"{result.passed} of {result.total} tests pass{names}")
    return with_failures(report, failed, runs)


async def _run_cheaters(report: TaskReport, task: HarnessTask, pool: SandboxPool, start: bytes) -> TaskReport:
    rewards = {}
    for name, end in (
        ("does nothing", start),
        ("planted files", await in_thread(with_files, start, PLANTED)),
    ):
        async with pool.take() as (sandbox,):
            result = await run_hidden_tests(sandbox, start, end, task.tests)
        if result.all_passed:
            rewards[name] = 1.0
    report = replace(report, rewards=rewards, passed_by=tuple(rewards))
    if "does nothing" in rewards:
        return with_fault(report, FaultKind.FREE, "the tests pass on the repository as it is")
    if rewards:
        return with_fault(report, FaultKind.CHEATER, f"files that an agent plants pass the tests: {', '.join(PLANTED)}")
    return report
