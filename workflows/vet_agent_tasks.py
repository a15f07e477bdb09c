"""Examine terminal tasks and repositories before training: the reference is rewarded, always, and doing nothing is not.

agentrl vet harbor:DIR, swe:ROWS ─► of each task: its solution N times (1), nothing (0), each in a new container ─► a report
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync as in_thread
from pydantic import ValidationError

from agentrl.errors import EpisodeError, SandboxError, TaskFileError, one_line
from agentrl.sandboxes.container import Container, ContainerSpec, open_container
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport, with_failures, with_fault
from agentrl.tasks.harbor import is_task_folder
from agentrl.tasks.task_type import UNUSABLE, problems_of
from agentrl.workflows.container_task import ContainerTask, Open
from agentrl.workflows.harness import HarnessTask
from agentrl.workflows.terminal_task import TerminalTask


def is_repository_task(task: Mapping[str, Any]) -> bool:
    """Return whether a task is one of `harness.py`."""
    return "harness" in task and "tests" in task


async def vet_agent_task(given: Mapping[str, Any], index: int = 0, *, image: str, runs: int = 5) -> TaskReport:
    """Examine one task.

    Args:
        given: As `harbor:DIR` or `swe:ROWS` give it.
        index: Its index among the tasks.
        image: That of a task that names none.
        runs: How often the reference solution is tried, to see whether it always passes.
    """

    def open_(spec: ContainerSpec) -> AbstractAsyncContextManager[Container]:
        return open_container(replace(spec, image=spec.image or image))

    report = TaskReport(index=index, name=one_line(given.get("name") or index, 60), rewards={}, tests=1)
    if (why := given.get(UNUSABLE)) is not None:
        return with_fault(report, FaultKind.UNREADABLE, one_line(why))
    try:
        task = (TerminalTask if is_task_folder(dict(given)) else HarnessTask).model_validate(given)
        return await _vetted(report, task, open_, runs)
    except ValidationError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(problems_of(error)))
    except TaskFileError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(error))
    except SandboxError as error:
        return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))


async def _vetted(report: TaskReport, task: ContainerTask, open_: Open, runs: int) -> TaskReport:
    if not await in_thread(lambda: task.has_solution):
        why = "no reference solution, so nothing shows that the tests can be passed"
        return with_fault(report, FaultKind.NO_REFERENCE, why)
    tried = [await _attempt(task, open_, task.solve) for _ in range(runs)]
    report = with_failures(report, [said for reward, said in tried if reward != 1], runs)
    free, _ = await _attempt(task, open_, _do_nothing)
    # With partial credit, the tests of a repository count that passed before.
    if free == 1 or (free and isinstance(task, TerminalTask)):
        report = replace(report, rewards={"does nothing": free})
        return with_fault(report, FaultKind.FREE, f"doing nothing is rewarded with {free:g}")
    return report


async def _attempt(task: ContainerTask, open_: Open, solve: Callable[[Container], Awaitable[str]]) -> tuple[float, str]:
    """Return the reward of what `solve` does, and what it and the tests printed; 0, and why, where the tests give no reward."""
    printed = ""

    async def work(container: Container) -> None:
        nonlocal printed
        printed = await solve(container)

    try:
        reward = await task.attempt(open_, work)
    except EpisodeError as error:
        return 0.0, one_line(error)
    said = f"the solution is rewarded with {reward.value:g}: {printed[-300:]} | {reward.details['output'][-300:]}"
    return reward.value, one_line(said, 600)


async def _do_nothing(_: Container) -> str:
    return ""
