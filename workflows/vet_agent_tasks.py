"""Examine terminal tasks and repositories before training: the reference is rewarded, always, and doing nothing is not.

agentrl vet harbor:DIR, swe:ROWS ─► of each task: its solution N times (1), nothing (0), each in a new container ─► a report
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync as in_thread
from pydantic import ValidationError

from agentrl.errors import EpisodeError, SandboxError, TaskFileError, one_line
from agentrl.sandboxes.container import Container, ContainerSpec, open_container
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport, each_task, with_failures, with_fault
from agentrl.tasks.harbor import is_task_folder
from agentrl.tasks.task_type import first_problem, why_unusable
from agentrl.workflows.harness import HarnessTask
from agentrl.workflows.harnesses import Open
from agentrl.workflows.terminal_task import TerminalTask


def is_repository_task(task: Mapping[str, Any]) -> bool:
    """Return whether a task is one of `harness.py`."""
    return "harness" in task and "tests" in task


async def vet_agent_tasks(
    tasks: Sequence[Mapping[str, Any]],
    *,
    image: str,
    at_once: int = 2,
    runs: int = 5,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, `at_once` at the same time.

    Args:
        tasks: As `harbor:DIR` or `swe:ROWS` give them.
        image: That of a task that names none.
        at_once: How many tasks are examined at the same time.
        runs: How often the reference solution is tried, to see whether it always passes.
        on_report: Called with each report as it is finished.

    Returns:
        A report for each task, in their order.
    """

    def open_(spec: ContainerSpec) -> AbstractAsyncContextManager[Container]:
        return open_container(replace(spec, image=spec.image or image))

    async def one(index: int, given: Mapping[str, Any]) -> TaskReport:
        report = TaskReport(index=index, name=one_line(given.get("name") or index, 60), rewards={}, tests=1)
        if (why := why_unusable(given)) is not None:
            return with_fault(report, FaultKind.UNREADABLE, one_line(why))
        try:
            return await _vetted(report, given, open_, runs)
        except ValidationError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(first_problem(error)))
        except TaskFileError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(error))
        except SandboxError as error:
            return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))

    return await each_task(tasks, one, at_once=at_once, on_report=on_report)


async def _vetted(report: TaskReport, given: Mapping[str, Any], open_: Open, runs: int) -> TaskReport:
    task = (TerminalTask if is_task_folder(dict(given)) else HarnessTask).model_validate(given)
    if not await in_thread(lambda: task.has_solution):
        return with_fault(
            report, FaultKind.NO_REFERENCE, "no reference solution, so nothing shows that the tests can be passed"
        )
    tried = [await _attempt(task, open_, task.solve) for _ in range(runs)]
    failed = [
        why if reward is None else f"the solution is rewarded with {reward:g}: {why}"
        for reward, why in tried
        if reward != 1
    ]
    report = with_failures(report, failed, runs)
    free, _ = await _attempt(task, open_, _do_nothing)
    # With partial credit, the tests of a repository count that passed before.
    if free == 1 or (free and isinstance(task, TerminalTask)):
        report = replace(report, rewards={"does nothing": free})
        return with_fault(report, FaultKind.FREE, f"doing nothing is rewarded with {free:g}")
    return report


async def _attempt(
    task: TerminalTask | HarnessTask, open_: Open, solve: Callable[[Container], Awaitable[str]]
) -> tuple[float | None, str]:
    """Return the reward of what `solve` does, and what it and the tests printed; None, and why, where the tests give no reward."""
    printed = ""

    async def work(container: Container) -> None:
        nonlocal printed
        printed = await solve(container)

    try:
        reward, tests = await task.attempt(open_, work, {})
    except EpisodeError as error:
        return None, one_line(error)
    return reward.value, one_line(f"{printed[-300:]} | {tests[-300:]}", 600)


async def _do_nothing(_: Container) -> str:
    return ""
