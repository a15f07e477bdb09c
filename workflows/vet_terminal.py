"""Examine terminal tasks before anybody trains on them: the reference solution is rewarded, always, and nobody else is.

agentrl vet harbor:DIR ─► of each task: its image, its solution (1), nothing (0), planted files (0) ─► a report
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync as in_thread
from pydantic import ValidationError

from agentrl.errors import EpisodeError, SandboxError, SandboxLostError, TaskFileError, one_line
from agentrl.rollout.task_faults import why_unusable
from agentrl.rollout.task_type import first_problem
from agentrl.sandboxes import SandboxPool, SandboxSpec, open_pool
from agentrl.sandboxes.choose import BackendName
from agentrl.sandboxes.grading.vet import (
    SLOW_SHARE,
    FaultKind,
    TaskReport,
    each_task,
    reason,
    with_failures,
    with_fault,
)
from agentrl.workflows.harness import files_left
from agentrl.workflows.repository import with_files
from agentrl.workflows.task_verifier import OpenTask, VerifierResult, open_task, solve, verify
from agentrl.workflows.terminal_task import TerminalTask

MODULE = """import os
for name, text in (("txt", "1"), ("json", '{"reward": 1}')):
    try:
        open("/logs/verifier/reward." + name, "w").write(text)
    except OSError:
        pass
os._exit(0)
"""
PROGRAM = """#!/bin/sh
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1}' > /logs/verifier/reward.json
"""
MODULES = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.py", "_pytest/__init__.py", "unittest.py"),
    *("json.py", "os.py", "pathlib.py", "subprocess.py"),
)
PLANTED = {**dict.fromkeys(MODULES, MODULE), **dict.fromkeys(("pytest", "python3", "python", "uv", "uvx"), PROGRAM)}
"""Files that a verifier might run in the place of its own, in each folder of the agent's."""

_FETCHES = re.compile(
    r"\b(apt(-get)?|apk|dnf|yum|pip3?|uv|npm|cargo|conda)\s+(-\S+\s+)*(install|add|update|sync)\b|\b(curl|wget|uvx|npx)\s"
)


async def vet_terminal_tasks(
    tasks: Sequence[Mapping[str, Any]],
    *,
    backend: BackendName = "docker",
    runtime: str | None = None,
    at_once: int = 2,
    runs: int = 5,
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Examine every task, `at_once` at the same time.

    Args:
        tasks: As `harbor:DIR` gives them.
        backend: Where their images are run.
        runtime: The OCI runtime of Docker.
        at_once: How many tasks are examined at the same time.
        runs: How often the reference solution is run, to see whether it always passes.
        on_report: Called with each report as it is finished.

    Returns:
        A report for each task, in their order.

    Raises:
        SandboxError: No sandbox can be started.
    """

    async def one(index: int, given: Mapping[str, Any]) -> TaskReport:
        return await vet_terminal_task(given, index, backend=backend, runtime=runtime, runs=runs)

    return await each_task(tasks, one, at_once=at_once, on_report=on_report)


async def vet_terminal_task(
    given: Mapping[str, Any],
    index: int = 0,
    *,
    backend: BackendName = "docker",
    runtime: str | None = None,
    runs: int = 5,
) -> TaskReport:
    """Examine one task: see `vet_terminal_tasks`.

    Raises:
        SandboxLostError: A sandbox is lost.
    """
    report = TaskReport(index=index, name=one_line(given.get("name", index), 60), rewards={}, tests=1)
    if (why := why_unusable(given)) is not None:
        return with_fault(report, FaultKind.UNREADABLE, one_line(why))
    try:
        asked = TerminalTask.model_validate(given)
        task = await open_task(asked.folder, asked.digest)
        report = replace(report, warnings=await in_thread(_warnings, asked, task))
    except ValidationError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(first_problem(error)))
    except TaskFileError as error:
        return with_fault(report, FaultKind.UNREADABLE, one_line(error))
    except SandboxLostError:
        raise
    except SandboxError as error:
        return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))
    image, limits = task.image.image, task.limits.of_sandbox()
    spec = SandboxSpec(image=image, limits=limits, cpus=task.limits.cpus, runtime=runtime, network=asked.network)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_pool(spec, backend=backend, size=1))
        testers = pool
        if task.verifier_limits != limits:
            larger = replace(spec, limits=task.verifier_limits)
            testers = await stack.enter_async_context(open_pool(larger, backend=backend, size=1))
        try:
            report = await _run_solution(
                report, task, pool, testers, runs, "" if asked.network else await in_thread(_needs_network, task)
            )
            return await _run_cheaters(report, task, testers)
        except SandboxLostError:
            raise
        except SandboxError as error:
            return with_fault(report, FaultKind.UNSUPPORTED, one_line(error))


def _warnings(asked: TerminalTask, task: OpenTask) -> tuple[str, ...]:
    warnings = []
    if task.folder.settings.environment.allow_internet and not asked.network:
        warnings.append('allow_internet = true gives no network; where it is needed, give the task "network": true')
    if all_of_it := task.folder.has_dockerfile and task.folder.copies_all():
        left_out = ", ".join(task.folder.withheld)
        warnings.append(
            f"its Dockerfile copies its whole folder ({all_of_it[0]}), of which {left_out} are left out for it"
        )
    return tuple(warnings)


def _needs_network(task: OpenTask) -> str:
    """Return what to say where the reference of a task without a network fails."""
    if not _FETCHES.search(task.test_script.read_text(errors="replace")):
        return ""
    return ': its verifier installs or fetches something, and there is no network; put that into the image, or give the task "network": true'


async def _run_solution(
    report: TaskReport, task: OpenTask, pool: SandboxPool, testers: SandboxPool, runs: int, hint: str
) -> TaskReport:
    if task.folder.solution is None:
        where = "solution/solve.sh" if task.folder.form == "harbor" else "solution.sh"
        return with_fault(report, FaultKind.NO_REFERENCE, f"no {where}, so nothing shows that the tests can be passed")
    failed = []
    for _ in range(runs):
        async with pool.take() as (sandbox,):
            started = anyio.current_time()
            said = await solve(task, sandbox)
            share = (anyio.current_time() - started) / task.limits.timeout_s
            end = await files_left(sandbox)
        report = replace(report, time_share=round(max(share, report.time_share), 3))
        result, nonsense = await _verified(task, testers, end)
        if result.reward < 1:
            failed.append(_why(result, nonsense, said) + hint)
    if report.time_share > SLOW_SHARE:
        warning = f"slow: the reference takes {report.time_share:.0%} of the agent's time"
        report = replace(report, warnings=(*report.warnings, warning))
    return with_failures(report, failed, runs)


def _why(result: VerifierResult, nonsense: str, said: str) -> str:
    if nonsense:
        return nonsense
    shown = " | ".join(text for text in (reason(said), reason(result.said)) if text)
    ended = "the verifier ran out of time" if result.timed_out else f"it is rewarded with {result.reward:g}"
    given = ended if result.gave_reward or result.timed_out else "the verifier gave no reward"
    return f"{given}{shown and f': {shown}'}"


async def _run_cheaters(report: TaskReport, task: OpenTask, pool: SandboxPool) -> TaskReport:
    rewards = {}
    for name, end in (
        ("does nothing", task.image.start),
        ("planted files", planted(task.image.start, task.image.writable)),
    ):
        result, _ = await _verified(task, pool, end)
        if result.reward > 0:
            rewards[name] = result.reward
    report = replace(report, rewards=rewards, passed_by=tuple(name for name, reward in rewards.items() if reward == 1))
    free = rewards.pop("does nothing", 0.0)
    if free:
        report = with_fault(report, FaultKind.FREE, f"who does nothing is rewarded with {free:g}")
    if "planted files" in rewards and not free:
        detail = "files with the names of modules and programs, put where the agent works, are rewarded: run tests by `pytest`, from /tests"
        report = with_fault(report, FaultKind.CHEATER, detail)
    return report


async def _verified(task: OpenTask, pool: SandboxPool, end: bytes | None) -> tuple[VerifierResult, str]:
    """Return what the verifier gives, and what is wrong with that if it is no reward."""
    async with pool.take() as (sandbox,):
        try:
            return await verify(task, sandbox, end), ""
        except EpisodeError as error:
            return VerifierResult(0.0, gave_reward=False, timed_out=False, said=""), one_line(error)


def planted(start: bytes, writable: Sequence[str]) -> bytes:
    """Return the task's files with others beside them that reward themselves where a verifier runs them."""
    return with_files(
        start, {str(Path(root.strip("/"), name)): text for root in writable for name, text in PLANTED.items()}
    )
