"""`agentrl config`: the configuration that files and keys come to."""

from __future__ import annotations

from typing import Any

import tomlkit

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Keys, Workflow
from agentrl.config import config_fields
from agentrl.config.machine import sized, this_machine
from agentrl.config.section import REQUIRED
from agentrl.system.failure_text import masked


def config(workflow: Workflow = None, /, *, config: Files = NO_FILES, keys: Keys = NO_KEYS) -> int:
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
