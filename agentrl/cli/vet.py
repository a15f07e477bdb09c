"""`agentrl vet`: which tasks of a set of code, repository or terminal tasks are fit to be trained on."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from agentrl.cli.options import NO_FILES, NO_KEYS, Files, JsonFlag, VetKeys
from agentrl.config import DataConfig, RunConfig, load_config
from agentrl.errors import ConfigError, SandboxError, UsageError
from agentrl.system.exit_code import leaves

if TYPE_CHECKING:
    from agentrl.episode import Task
    from agentrl.sandboxes.grading.vet import TaskReport

SHOWN_TASKS = 30
SHOWN_LINES = 20
"""Of progress, where standard error is no terminal."""
SHOWN_CHEATERS = 10
TERMINAL, REPOSITORY, CODE = "terminal tasks", "repositories with hidden tests", "code"


def vet(
    tasks: str | None = None,
    /,
    *,
    output: Annotated[Path | None, Parameter(negative=())] = None,
    report: Annotated[Path | None, Parameter(negative=())] = None,
    limit: Annotated[int | None, Parameter(negative=())] = None,
    runs: int = 5,
    timeout_s: Annotated[float | None, Parameter(negative=())] = None,
    as_json: JsonFlag = False,
    config: Files = NO_FILES,
    keys: VetKeys = NO_KEYS,
) -> int:
    """Find the tasks of a set of code, repository or terminal tasks that cannot be solved, or are rewarded for nothing.

    Exit code 0: every task is kept; 1: some are refused; 2: bad input.

    Args:
        tasks: File of JSON lines (.gz too), hf:DATASET, python:FILE:NAME, harbor:DIR, or swe:ROWS. Default: those of the files of
            keys, `tasks` or `data.sources`.
        output: Write the tasks that are kept to this file.
        report: Write what is wrong with each other task to this file.
        limit: Examine the first so many tasks alone.
        runs: How often each reference is run, to see if it always passes.
        timeout_s: CPU seconds of a test that has no limits of its own.
        as_json: Print the report as JSON, and no table.
        config: TOML files of keys.
        keys: The keys of sandboxes and tasks that were typed.

    Raises:
        ConfigError: A number is not more than 0, or a key or a file cannot be used.
        UsageError: There is no sandbox to run the tasks in.
    """
    from agentrl.cli.terminal import print_json
    from agentrl.sandboxes.grading.vet import vetting_summary
    from agentrl.system.files import write_whole

    for option, number in (("--limit", limit), ("--runs", runs), ("--timeout-s", timeout_s)):
        if number is not None and not number > 0:
            raise ConfigError(f"{option} {number:g} must be more than 0")
    run = load_config(config, keys)
    sources = [tasks] if tasks is not None else [source.tasks for source in run.data.sources] or [run.tasks]
    if not any(sources):
        raise ConfigError("no tasks are named; name them after `agentrl vet`, or in a file of keys that --config names")
    for file in (output, report):
        if file is not None:
            check_file(file, sources)
    examined = [task for source in sources for task in tasks_to_vet(source, run.data, limit)]
    try:
        reports = run_vetting(run, examined, timeout_s=timeout_s, runs=runs)
    except* SandboxError as failed:  # an exit code of 1 says that tasks are refused
        raise UsageError(f"nothing can be vetted: {next(leaves(failed))}") from failed
    summary = vetting_summary(reports)
    if output is not None:
        kept = [
            {**examined[one.index], **({"baseline": one.baseline} if one.baseline else {})}
            for one in reports
            if one.kept
        ]
        write_whole(output, "".join(json.dumps(task, default=str) + "\n" for task in kept))
    if report is not None:
        write_whole(report, json.dumps(summary, indent=2) + "\n")
    if as_json:
        print_json(summary)
    else:
        show_vetting(reports, summary)
    return 0 if summary["kept"] == summary["tasks"] else 1


def check_file(file: Path, sources: Sequence[str]) -> None:
    """Check that a file can be written, before an hour of work goes into it.

    Raises:
        ConfigError: It cannot, or it is the file of the tasks.
    """
    named = {Path(part).resolve() for source in sources for part in (source, *re.split("[:@]", source)) if part}
    if file.resolve() in named:
        raise ConfigError(f"{file} is the task file itself; write to another file")
    if (file.exists() and not file.is_file()) or not os.access(file.absolute().parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written: name a file in a folder that exists and is writable")


def tasks_to_vet(source: str, data: DataConfig, limit: int | None) -> list[Task]:
    """Return the tasks of a source as a run or an evaluation reads them, and those that cannot be used besides, for their reports.

    Args:
        source: As the key `tasks` names it.
        data: Of which `columns` and `fields` count.
        limit: How many; None: all.

    Raises:
        TaskFileError: They cannot be read.
    """
    from agentrl.tasks.harbor import tasks_of_folder
    from agentrl.tasks.run_tasks import with_columns
    from agentrl.tasks.swe_rows import split_agent, tasks_of_rows
    from agentrl.tasks.tasks import AnyTasks, list_tasks

    tasks: AnyTasks = source
    match source.split(":", 1):
        case ["harbor", folder]:
            tasks = tasks_of_folder(folder)
        case ["swe", given]:
            rows, agent = split_agent(given)
            tasks = tasks_of_rows(list_tasks(rows), agent)
    return list_tasks(with_columns(tasks, data), limit)


def run_vetting(config: RunConfig, tasks: Sequence[Task], *, timeout_s: float | None, runs: int) -> list[TaskReport]:
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
    from agentrl.cli.terminal import run_until_signal
    from agentrl.rollout.episode_parts import load_backend
    from agentrl.sandboxes import Limits, SandboxSpec, open_pool
    from agentrl.sandboxes.grading.vet import each_task, vet_task
    from agentrl.sandboxes.pool import default_size
    from agentrl.tasks.harbor import is_task_folder
    from agentrl.workflows.vet_agent_tasks import is_repository_task, vet_agent_tasks

    sandbox = config.sandbox
    limits = Limits(memory_mb=sandbox.memory_mb).changed(timeout_s=timeout_s)
    spec = SandboxSpec(image=sandbox.image, limits=limits)
    kinds = {TERMINAL if is_task_folder(task) else REPOSITORY if is_repository_task(task) else CODE for task in tasks}
    if len(kinds) > 1:
        raise ConfigError(
            f"the tasks are of several kinds ({', '.join(sorted(kinds))}); vet those of each kind by themselves"
        )

    async def examine_all(on_report: Callable[[TaskReport], None]) -> list[TaskReport]:
        if CODE not in kinds:
            return await vet_agent_tasks(
                tasks,
                image=sandbox.image,
                at_once=default_size(),
                runs=runs,
                on_report=on_report,
            )
        backend = await load_backend(sandbox.backend)
        async with open_pool(spec, backend=backend) as pool:
            image = f", image {spec.image}" if pool.backend.name == "docker" else ""
            print(f"graded with {pool.backend.name}{image}; train with the same `sandbox.backend`", file=sys.stderr)
            examine = lambda index, task: vet_task(task, index, pool=pool, runs=runs)  # noqa: E731
            return await each_task(tasks, examine, at_once=pool.size, on_report=on_report)

    with _progress(len(tasks)) as on_report:
        return run_until_signal(lambda: examine_all(on_report))


@contextmanager
def _progress(count: int) -> Iterator[Callable[[TaskReport], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("tasks", total=count)

        def examined(report: TaskReport) -> None:
            progress.advance(bar)
            done = int(progress.tasks[0].completed)
            if not console.is_terminal and done * SHOWN_LINES // count > (done - 1) * SHOWN_LINES // count:
                print(f"{done} of {count} tasks are examined", file=sys.stderr)

        yield examined


def show_vetting(reports: Sequence[TaskReport], summary: dict[str, Any]) -> None:
    """Print the tasks that are refused, and figures over all."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, refused = Console(), [report for report in reports if not report.kept]
    if refused:
        table = Table("task", "tests", "refused because", title="refused tasks", title_justify="left")
        for report in refused[:SHOWN_TASKS]:
            reasons = "\n".join(f"{fault.kind}: {fault.detail}" for fault in report.faults)
            table.add_row(escape(report.name), str(report.tests), escape(reasons))
        console.print(table)
    if len(refused) > SHOWN_TASKS:
        console.print(f"{len(refused) - SHOWN_TASKS} tasks more; --report FILE lists all", highlight=False)
    figures = Table.grid(padding=(0, 2))
    figures.add_row("tasks", f"{summary['tasks']}, of which {summary['kept']} are kept")
    for name, count in {**summary["faults"], **summary["notes"]}.items():
        figures.add_row(escape(name), str(count))
    for name, count in list(summary["cheaters"].items())[:SHOWN_CHEATERS]:
        figures.add_row(escape(name), f"earns something in {count}")
    console.print(figures)
