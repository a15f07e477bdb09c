"""Examine a set of code tasks, print what is wrong, and write the tasks that are fit to be trained on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from agentrl.config import DataConfig, RunConfig
from agentrl.episode import Task
from agentrl.errors import ConfigError
from agentrl.rollout.episode_parts import load_backend
from agentrl.tasks.harbor import is_task_folder, tasks_of_folder
from agentrl.tasks.run_tasks import with_columns
from agentrl.tasks.swe_rows import split_agent, tasks_of_rows
from agentrl.tasks.tasks import AnyTasks, list_tasks
from agentrl.workflows.vet_agent_tasks import is_repository_task, vet_agent_tasks

if TYPE_CHECKING:
    from agentrl.sandboxes.grading.vet import TaskReport

SHOWN_TASKS = 30
SHOWN_LINES = 20
"""Of progress, where standard error is no terminal."""
SHOWN_CHEATERS = 10
TERMINAL, REPOSITORY = "terminal tasks", "repositories with hidden tests"


def tasks_to_vet(sources: Sequence[str], data: DataConfig, limit: int | None) -> list[Task]:
    """Return the tasks of some sources as a run or an evaluation reads them, and those that cannot be used besides, for their reports.

    Args:
        sources: As the key `tasks` names them.
        data: Of which `columns` and `fields` count.
        limit: How many of each source; None: all.

    Raises:
        TaskFileError: They cannot be read.
    """
    tasks: list[Task] = []
    for source in sources:
        tasks += list_tasks(with_columns(_with_unusable(source), data), limit)
    return tasks


def _with_unusable(source: str) -> AnyTasks:
    """Return the tasks of a source whose parts are read one by one, with tasks in the places of those that can be none; other sources as they are."""
    match source.split(":", 1):
        case ["harbor", folder]:
            return tasks_of_folder(folder)
        case ["swe", given]:
            rows, agent = split_agent(given)
            return tasks_of_rows(list_tasks(rows), agent)
    return source


async def run_vetting(
    config: RunConfig, tasks: Sequence[Task], *, timeout_s: float | None, runs: int
) -> list[TaskReport]:
    """Examine `tasks`, with a bar on standard error that shows how far it is.

    Args:
        config: of which the section `sandbox` counts.
        tasks: the tasks.
        timeout_s: CPU seconds of a test without limits of its own; None: the default of `Limits`.
        runs: how often each reference is run.

    Raises:
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
        ConfigError: A number is out of its range, or the tasks are of several kinds.
    """
    from agentrl.sandboxes import Limits, SandboxSpec, open_pool
    from agentrl.sandboxes.grading.vet import each_task, vet_task
    from agentrl.sandboxes.pool import default_size

    sandbox = config.sandbox
    at_once = default_size()
    limits = Limits(memory_mb=sandbox.memory_mb).changed(timeout_s=timeout_s)
    spec = SandboxSpec(image=sandbox.image, runtime=sandbox.runtime, limits=limits)
    kinds = {_kind(task, is_repository_task) for task in tasks}
    if len(kinds) > 1:
        raise ConfigError(
            f"the tasks are of several kinds ({', '.join(sorted(kinds))}); vet those of each kind by themselves"
        )
    if kinds & {TERMINAL, REPOSITORY}:
        with _progress(len(tasks)) as on_report:
            return await vet_agent_tasks(
                tasks, image=sandbox.image, runtime=sandbox.runtime, at_once=at_once, runs=runs, on_report=on_report
            )
    backend = await load_backend(sandbox.backend)
    async with open_pool(spec, backend=backend) as pool:
        image = f", image {spec.image}" if pool.backend.name == "docker" else ""
        print(
            f"graded with {pool.backend.name}{image}; vet with the `sandbox.backend` that you train with",
            file=sys.stderr,
        )
        with _progress(len(tasks)) as on_report:
            examine = lambda index, task: vet_task(task, index, pool=pool, runs=runs)  # noqa: E731
            return await each_task(tasks, examine, at_once=pool.size, on_report=on_report)


def _kind(task: Task, is_repository_task: Callable[[Task], bool]) -> str:
    return TERMINAL if is_task_folder(task) else REPOSITORY if is_repository_task(task) else "code"


@contextmanager
def _progress(count: int) -> Iterator[Callable[[TaskReport], None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("tasks", total=count)

        def examined(report: TaskReport) -> None:
            progress.advance(bar)
            done = int(progress.tasks[0].completed)
            if not progress.console.is_terminal and done * SHOWN_LINES // count > (done - 1) * SHOWN_LINES // count:
                print(f"{done} of {count} tasks are examined", file=sys.stderr)

        yield examined


def finish_vetting(
    tasks: Sequence[Task],
    reports: Sequence[TaskReport],
    *,
    output: Path | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Write and print what came of a vetting. Returns the exit code: 0 when every task is kept, else 1.

    Args:
        tasks: the tasks.
        reports: one for each task, in their order.
        output: file for the tasks that are kept, one JSON line each.
        report: file for what is wrong with the others, as JSON.
        as_json: print the report in place of a table.
    """
    from agentrl.sandboxes.grading.vet import vetting_summary

    summary = vetting_summary(reports)
    if output is not None:
        measured = [
            tasks[one.index] | ({"baseline": one.baseline} if one.baseline else {}) for one in reports if one.kept
        ]
        _write(output, "".join(json.dumps(task, default=str) + "\n" for task in measured))
    if report is not None:
        _write(report, json.dumps(summary, indent=2) + "\n")
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        show_vetting(reports, summary, Console())
    return 0 if summary["kept"] == summary["tasks"] else 1


def check_files(tasks: str, *files: Path | None) -> None:
    """Check that the files which are to be written can be.

    Args:
        tasks: The source of the tasks, which may be a file.
        files: The files to write; None: one that nobody asked for.

    Raises:
        ConfigError: A file cannot be written, or is the task file itself.
    """
    kind, _, rest = tasks.partition(":")
    named_by = {"swe": rest, "python": rest.rpartition(":")[0]}.get(kind, tasks)
    for file in files:
        if file is None:
            continue
        if file.resolve() == Path(named_by).resolve():
            raise ConfigError(f"{file} is the task file itself; write to another file")
        folder = file.resolve().parent
        if (file.exists() and not file.is_file()) or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(
                f"{file} cannot be written: its folder must exist and be writable, and it must be no folder or device itself"
            )


def show_vetting(reports: Sequence[TaskReport], summary: dict[str, Any], console: Console) -> None:
    """Print the tasks that are refused, and figures over all."""
    noted = [report for report in reports if report.faults]
    if noted:
        table = Table("task", "tests", "refused because", title="refused tasks", title_justify="left")
        for report in noted[:SHOWN_TASKS]:
            reasons = "\n".join(f"{fault.kind}: {fault.detail}" for fault in report.faults)
            table.add_row(escape(report.name), str(report.tests), escape(reasons))
        console.print(table)
    if len(noted) > SHOWN_TASKS:
        console.print(f"{len(noted) - SHOWN_TASKS} tasks more; --report FILE lists all", highlight=False)
    figures = Table.grid(padding=(0, 2))
    figures.add_row("tasks", f"{summary['tasks']}, of which {summary['kept']} are kept")
    for name, count in summary["faults"].items():
        figures.add_row(escape(name), str(count))
    for name, count in list(summary["cheaters"].items())[:SHOWN_CHEATERS]:
        figures.add_row(escape(name), f"earns something in {count}")
    console.print(figures)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"wrote {path}", file=sys.stderr)
