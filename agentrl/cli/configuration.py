"""The configuration that the words of a command come to, and `agentrl config`, which prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from agentrl.cli.options import NO_KEYS, Files, Keys, Workflow
from agentrl.config import RunConfig, config_fields, load_config
from agentrl.config.machine import sized, this_machine
from agentrl.config.run import check_set
from agentrl.config.section import REQUIRED
from agentrl.errors import ConfigError
from agentrl.system.failure_text import masked


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
    if workflow or files or {"workflow", "tasks", "model.path"} & set(keys):
        raise ConfigError(
            "--resume takes the configuration of the run: leave out WORKFLOW, --config, --workflow, --tasks and --model; "
            "single keys of other kinds may be changed with --section.key VALUE"
        )
    config = read_config(resume, keys)
    if any(key in required and not getattr(config, key) for key in ("workflow", "tasks")):
        raise ConfigError(
            f"the run in {resume} was started from Python, with a workflow or tasks that are in no file: go on with it there, by "
            "agentrl.train(config, workflow=..., tasks=..., resume=True); or it is a supervised one: agentrl sft --resume"
        )
    old, new = (dict(_values(masked(one.model_dump()))) for one in (read_config(resume), config))
    if changed := [f"{key} {old.get(key)!r} → {new[key]!r}" for key in new if old.get(key) != new[key]]:
        print(f"changed keys: {', '.join(changed)}", file=sys.stderr)
    return config


def _values(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a section by their dotted keys."""
    for name, value in section.items():
        yield from _values(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]


def config(workflow: Workflow = None, /, *, config: Files = (), keys: Keys = NO_KEYS) -> int:
    """Print the configuration that `agentrl train` would have here with these files and keys: TOML, every key with its documentation.

    What is printed can be given to `--config` again, but for the credentials in addresses, which are shown as ***.

    Args:
        workflow: Python file with `async def run(episode)`.
        config: TOML files of keys.
        keys: The keys that were typed.
    """
    chosen, _ = sized(configuration(keys, config, workflow), this_machine(), training=True)
    print(toml_of(masked(chosen.model_dump())).rstrip())
    return 0


def toml_of(values: dict[str, Any]) -> str:
    """Return the values of a configuration as TOML. A key that has none, or that its section has only in another kind, is a comment."""
    lines: list[str] = []
    last = ""
    for key in config_fields():
        section, _, name = key.name.rpartition(".")
        within: Any = values
        for part in section.split(".") if section else ():
            within = within[part] if within else None
        if section != last:
            lines += ["", f"{'' if within else '# '}[{section}]  # {' '.join(key.section.split())}"]
            last = section
        lines += [f"# {line.strip()}" for line in key.documentation.splitlines()]
        value = within.get(name) if within else None
        default = "" if key.default is None or key.default is REQUIRED else _written(key.default)
        lines.append(f"# {name} = {default}".rstrip() if value is None else f"{name} = {_written(value)}")
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({name: one for name, one in value.items() if one is not None})
        return str(table.as_string())
    return str(tomlkit.item(value).as_string())
