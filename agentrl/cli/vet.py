"""`agentrl vet`: which tasks of a set of code, repository or terminal tasks are fit to be trained on."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts.types import PositiveFloat, PositiveInt

from agentrl.cli.options import NO_KEYS, Files, JsonFlag, VetKeys
from agentrl.config import RunConfig, load_config
from agentrl.errors import ConfigError, SandboxError, UsageError
from agentrl.system.exit_code import leaves

if TYPE_CHECKING:
    from agentrl.episode import Task
    from agentrl.sandboxes.grading.vet import TaskReport


def vet(
    tasks: str | None = None,
    /,
    *,
    output: Path | None = None,
    report: Path | None = None,
    limit: PositiveInt | None = None,
    runs: PositiveInt = 5,
    timeout_s: PositiveFloat | None = None,
    as_json: JsonFlag = False,
    config: Files = (),
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
        ConfigError: A key or a file cannot be used.
        UsageError: There is no sandbox to run the tasks in.
    """
    from agentrl.cli.terminal import print_json
    from agentrl.sandboxes.grading.vet import vetting_summary
    from agentrl.system.files import write_whole
    from agentrl.tasks.tasks import list_tasks, rows_of

    run = load_config(config, keys)
    sources = [tasks] if tasks is not None else [source.tasks for source in run.data.sources] or [run.tasks]
    if not any(sources):
        raise ConfigError("no tasks are named; name them after `agentrl vet`, or in a file of keys that --config names")
    for file in (output, report):
        if file is not None:
            check_file(file, sources)
    # Tasks that cannot be used are there too: they have their reports.
    listed = (list_tasks(rows_of(name), limit, data=run.data) for name in sources)
    examined = list(islice(chain.from_iterable(listed), limit))
    try:
        reports = run_vetting(run, examined, timeout_s=timeout_s, runs=runs)
    except* SandboxError as failed:  # an exit code of 1 says that tasks are refused
        raise UsageError(f"nothing can be vetted: {next(leaves(failed))}") from failed
    summary = vetting_summary(reports)
    if output is not None:
        added = {one.index: {"baseline": one.baseline} if one.baseline else {} for one in reports if one.kept}
        kept = (json.dumps({**examined[index], **baseline}, default=str) for index, baseline in added.items())
        write_whole(output, "".join(f"{line}\n" for line in kept))
        print(f"the tasks that are kept are in {output}", file=sys.stderr)
    if report is not None:
        write_whole(report, json.dumps(summary, indent=2) + "\n")
        print(f"the report is in {report}", file=sys.stderr)
    if as_json:
        print_json(summary)
    else:
        show_vetting(summary)
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
    from agentrl.cli.evaluation_view import evaluation_view
    from agentrl.cli.terminal import run_until_signal
    from agentrl.rollout.episode_parts import load_backend
    from agentrl.sandboxes import Limits, SandboxSpec, open_pool
    from agentrl.sandboxes.grading.vet import each_task, vet_task
    from agentrl.sandboxes.pool import default_size
    from agentrl.tasks.harbor import is_task_folder
    from agentrl.workflows.vet_agent_tasks import is_repository_task, vet_agent_task

    sandbox = config.sandbox
    limits = Limits(memory_mb=sandbox.memory_mb).changed(timeout_s=timeout_s)
    spec = SandboxSpec(image=sandbox.image, limits=limits)
    for_agents = {is_task_folder(task) or is_repository_task(task) for task in tasks}
    if len(for_agents) > 1:
        raise ConfigError(
            "some of the tasks are code, others are for agents in containers; vet those of each kind by themselves"
        )

    async def examine_all(on_report: Callable[[TaskReport], None]) -> list[TaskReport]:
        if True in for_agents:
            agent = partial(vet_agent_task, image=sandbox.image, runs=runs)
            return await each_task(
                tasks, lambda index, task: agent(task, index), at_once=default_size(), on_report=on_report
            )
        backend = await load_backend(sandbox.backend)
        async with open_pool(spec, backend=backend) as pool:
            shown = f", image {spec.image}" if pool.backend.name == "docker" else ""
            print(f"graded with {pool.backend.name}{shown}; train with the same `sandbox.backend`", file=sys.stderr)
            examine = lambda index, task: vet_task(task, index, pool=pool, runs=runs)  # noqa: E731
            return await each_task(tasks, examine, at_once=pool.size, on_report=on_report)

    with evaluation_view("tasks", "refused") as view:
        view.begin(len(tasks), 0)
        return run_until_signal(lambda: examine_all(lambda report: view.on_end(failed=not report.kept)))


def show_vetting(summary: dict[str, Any]) -> None:
    """Print the tasks that are refused, and figures over all."""
    from agentrl.cli.terminal import print_table

    refused = [
        (task["name"], task["tests"], "\n".join(f"{fault['kind']}: {fault['detail']}" for fault in task["faults"]))
        for task in summary["refused_tasks"]
    ]
    if refused:
        columns, more = ("task", "tests", "refused because"), "tasks more; --report FILE lists all"
        print_table(columns, refused, title="refused tasks", more=more)
    tasks = {"tasks": f"{summary['tasks']}, of which {summary['kept']} are kept"}
    cheaters = {name: f"earns something in {count}" for name, count in summary["cheaters"].items()}
    print_table((), {**tasks, **summary["faults"], **summary["notes"], **cheaters}.items())
