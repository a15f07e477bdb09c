"""`agentrl vet`: which tasks of a set of code, repository or terminal tasks are fit to be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.options import NO_FILES, NO_KEYS, Files, JsonFlag, VetKeys
from agentrl.config import load_config
from agentrl.errors import ConfigError, SandboxError, UsageError
from agentrl.system.exit_code import leaves


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
    from agentrl.cli.foreground import run_until_signal
    from agentrl.cli.vetting import check_files, finish_vetting, run_vetting, tasks_to_vet

    for option, number in (("--limit", limit), ("--runs", runs), ("--timeout-s", timeout_s)):
        if number is not None and not number > 0:
            raise ConfigError(f"{option} {number:g} must be more than 0")
    run = load_config(config, keys)
    sources = [tasks] if tasks is not None else [source.tasks for source in run.data.sources] or [run.tasks]
    if not any(sources):
        raise ConfigError("no tasks are named; name them after `agentrl vet`, or in a file of keys that --config names")
    for source in sources:
        check_files(source, output, report)
    examined = tasks_to_vet(sources, run.data, limit)
    try:
        reports = run_until_signal(lambda: run_vetting(run, examined, timeout_s=timeout_s, runs=runs))
    except* SandboxError as failed:  # an exit code of 1 says that tasks are refused
        raise UsageError(f"nothing can be vetted: {next(leaves(failed))}") from failed
    return finish_vetting(examined, reports, output=output, report=report, as_json=as_json)
