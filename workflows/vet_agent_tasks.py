"""Examine terminal tasks and repositories before anybody trains on them: the reference is rewarded, always, and doing nothing is not.

agentrl vet harbor:DIR, swe:ROWS ─► of each task: its solution N times (1), nothing (0), each in a new container ─► a report
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from agentrl.errors import EpisodeError, SandboxError, SandboxLostError, TaskFileError, one_line
from agentrl.rollout.task_faults import why_unusable
from agentrl.rollout.task_folders import is_task_folder
from agentrl.rollout.task_type import first_problem
from agentrl.sandboxes.container import Container, ContainerSpec, open_container
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport, each_task, with_failures, with_fault
from agentrl.workflows import harness, task_verifier
from agentrl.workflows.harness import HarnessTask
from agentrl.workflows.hidden_tests import lay_over, patched
from agentrl.workflows.terminal_task import TerminalTask

Attempt = Callable[[bool], Awaitable[tuple[float, str]]]
"""Takes whether the reference solution is tried, or nothing is done; gives the reward and what was said."""


def is_repository_task(task: Mapping[str, Any]) -> bool:
    """Return whether a task is one of `harness.py`."""
    return "harness" in task and "tests" in task


async def vet_agent_tasks(
    tasks: Sequence[Mapping[str, Any]],
    *,
    image: str,
    runtime: str | None = None,
    at_once: int = 2,
    runs: int = 5,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, `at_once` at the same time.

    Args:
        tasks: As `harbor:DIR` or `swe:ROWS` give them.
        image: That of a task that names none.
        runtime: The OCI runtime of the engine.
        at_once: How many tasks are examined at the same time.
        runs: How often the reference solution is tried, to see whether it always passes.
        on_report: Called with each report as it is finished.

    Returns:
        A report for each task, in their order.

    Raises:
        SandboxLostError: A container ended.
    """

    def open_(spec: ContainerSpec) -> AbstractAsyncContextManager[Container]:
        return open_container(replace(spec, image=spec.image or image, runtime=runtime))

    async def one(index: int, given: Mapping[str, Any]) -> TaskReport:
        report = TaskReport(index=index, name=one_line(given.get("name") or index, 60), rewards={}, tests=1)
        if (why := why_unusable(given)) is not None:
            return with_fault(report, FaultKind.UNREADABLE, one_line(why))
        try:
            attempt = await (_terminal if is_task_folder(dict(given)) else _repository)(given, open_)
            return await _vetted(report, attempt, runs)
        except ValidationError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(first_problem(error)))
        except TaskFileError as error:
            return with_fault(report, FaultKind.UNREADABLE, one_line(error))
        except SandboxLostError:
            raise
        except SandboxError as error:
            return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))

    return await each_task(tasks, one, at_once=at_once, on_report=on_report)


async def _vetted(report: TaskReport, attempt: Attempt | None, runs: int) -> TaskReport:
    if attempt is None:
        return with_fault(
            report, FaultKind.NO_REFERENCE, "no reference solution, so nothing shows that the tests can be passed"
        )
    failed = [
        f"it is rewarded with {reward:g}: {said}"
        for reward, said in [await attempt(True) for _ in range(runs)]
        if reward < 1
    ]
    report = with_failures(report, failed, runs)
    free, _ = await attempt(False)
    if free:
        report = replace(report, rewards={"does nothing": free})
        return with_fault(report, FaultKind.FREE, f"doing nothing is rewarded with {free:g}")
    return report


async def _terminal(given: Mapping[str, Any], open_: Any) -> Attempt | None:
    asked = TerminalTask.model_validate(given)
    task = await task_verifier.open_task(asked.folder, asked.digest, network=asked.network)

    async def attempt(solved: bool) -> tuple[float, str]:
        said = ""

        async def work(container: Container) -> None:
            nonlocal said
            said = await task_verifier.solve(task, container) if solved else ""

        try:
            result = await task_verifier.attempt(task, open_, work)
        except EpisodeError as error:
            return 0.0, one_line(error)
        return result.reward, one_line(f"{said[-300:]} | {result.said[-300:]}", 600)

    return attempt if task.folder.solution is not None else None


async def _repository(given: Mapping[str, Any], open_: Any) -> Attempt | None:
    task = HarnessTask.model_validate(given)

    async def attempt(solved: bool) -> tuple[float, str]:
        async def work(container: Container) -> None:
            folder = task.folder or (await container.run(["pwd"])).stdout.decode().strip()
            if solved:
                await lay_over(await patched(task.solution, container, folder), container, folder)

        result = await harness.attempt(task, open_, work, task.spec)
        return float(result.all_passed), one_line(
            f"not passed: {', '.join(result.not_passed)} | {result.said[-300:]}", 600
        )

    return attempt if task.solution else None
