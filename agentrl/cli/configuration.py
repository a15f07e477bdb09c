"""The configuration that the words of a command come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, load_config
from agentrl.config.run import check_set
from agentrl.errors import ConfigError


def configuration(keys: Mapping[str, Any], files: Sequence[Path], workflow: Path | None, *required: str) -> RunConfig:
    """Return the configuration of the files and keys that were typed.

    Args:
        keys: what was typed for keys, by their dotted names.
        files: those of `--config`.
        workflow: the WORKFLOW of the command, or None.
        required: keys that must have a value.

    Raises:
        ConfigError: A file, a key or a value is wrong, or a required key has no value.
    """
    config = load_config(files, keys, workflow="" if workflow is None else str(workflow))
    check_set(config, *required)
    return config


def run_configuration(
    keys: Mapping[str, Any],
    files: Sequence[Path],
    workflow: Path | None,
    *required: str,
    resume: Path | None,
    run_dir: str,
) -> RunConfig:
    """Return the configuration of a new run, in a directory that is named by the time if by nothing else, or of the one resumed.

    Args:
        keys: as for `configuration`.
        files: as for `configuration`.
        workflow: as for `configuration`.
        required: as for `configuration`.
        resume: the run to resume, or None.
        run_dir: the directory of a run that none is named for, as `time.strftime` takes it.

    Raises:
        ConfigError: The configuration is wrong, what may not be given beside `--resume` is, or the run was started from Python.
        UsageError: The run cannot be resumed.
    """
    from agentrl.run.run_directory import read_config, with_run_dir

    if resume is None:
        return with_run_dir(configuration(keys, files, workflow, *required), run_dir)
    given = [f"the WORKFLOW {workflow}"] if workflow else []
    given += [f"--config {file}" for file in files]
    given += [f"--{key}" for key in ("workflow", "tasks", "model.path") if key in keys]
    if given:
        raise ConfigError(
            f"--resume takes the configuration of the run, and not {', '.join(given)}: leave {'them' if given[1:] else 'it'} out; "
            "single keys of other kinds may be changed with --section.key VALUE"
        )
    config = read_config(resume, keys)
    if any(key in required and not getattr(config, key) for key in ("workflow", "tasks")):
        raise ConfigError(
            f"the run in {resume} was started from Python, with a workflow or tasks that are in no file: go on with it there, by "
            "agentrl.train(config, workflow=..., tasks=..., resume=True); or it is a supervised one: agentrl sft --resume"
        )
    return config
