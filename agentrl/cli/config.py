"""`agentrl config`: the configuration that files and keys come to."""

from __future__ import annotations

import json
from typing import Any

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Flag, Keys, Workflow
from agentrl.config import REQUIRED, Key, RunConfig, config_fields
from agentrl.system.failure_text import masked


def config(
    workflow: Workflow = None, /, *, schema: Flag = False, config: Files = NO_FILES, keys: Keys = NO_KEYS
) -> int:
    """Print the configuration that a command with these files and keys would have: TOML, every key with its documentation.

    What is printed can be given to `--config` again, but for the credentials in addresses, which are shown as ***.

    Args:
        workflow: Python file with `async def run(episode)`.
        schema: Print the JSON schema of every key instead.
        config: TOML files of keys.
        keys: The keys that were typed.
    """
    run = configuration(keys, config, workflow)
    print(json.dumps(RunConfig.model_json_schema(), indent=2) if schema else toml_of(run).rstrip())
    return 0


def toml_of(run: RunConfig, *, show_credentials: bool = False) -> str:
    """Return the configuration as TOML, the credentials that stand in addresses as *** unless they are to be shown.

    A key that has no value, or that its section has only in another kind, is there as a comment.
    """
    values = run.model_dump() if show_credentials else masked(run.model_dump())
    lines: list[str] = []
    last = ""
    for key in config_fields():
        section, _, name = key.name.rpartition(".")
        within = _value(values, section) if section else values
        if section != last:
            table = f"[{section}]  # {' '.join(key.section.split())}"
            lines += ["", table if within is not None else f"# {table}"]
            last = section
        lines += [f"# {line.strip()}" for line in key.documentation.splitlines()]
        value = within.get(name) if within is not None else None
        if value is not None:
            lines.append(f"{name} = {_written(value)}")
        else:
            lines.append(f"# {name} = {_default(key)}".rstrip())
    return "\n".join(lines) + "\n"


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = None if values is None else values[part]
    return values


def _default(key: Key) -> str:
    return "" if key.default is None or key.default is REQUIRED else _written(key.default)


def _written(value: Any) -> str:
    import tomlkit

    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({name: one for name, one in value.items() if one is not None})
        return str(table.as_string())
    return str(tomlkit.item(value).as_string())
