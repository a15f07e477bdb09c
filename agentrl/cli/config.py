"""`agentrl config`: the configuration that files and keys come to."""

from __future__ import annotations

import json

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Flag, Keys, Workflow
from agentrl.config import RunConfig, config_fields


def config(
    workflow: Workflow = None, /, *, schema: Flag = False, config: Files = NO_FILES, keys: Keys = NO_KEYS
) -> int:
    """Print the configuration that a command with these files and keys would have: TOML, every key with its documentation.

    What is printed can be given to `--config` again.

    Args:
        schema: Print the JSON schema of every key instead.
    """
    run = configuration(keys, config, workflow)
    print(json.dumps(RunConfig.model_json_schema(), indent=2) if schema else toml_of(run).rstrip())
    return 0


def toml_of(run: RunConfig) -> str:
    """Return the configuration as TOML. A key that has no value, and whose default is none, is there as a comment."""
    import tomlkit
    from tomlkit.items import Table

    document = tomlkit.document()
    sections: dict[str, Table] = {}
    for key, section, field in config_fields():
        name, _, last = key.rpartition(".")
        if name and name not in sections:
            sections[name] = tomlkit.table()
            document.add(name, sections[name])
            sections[name].comment(" ".join((section.__doc__ or "").split()))
        place = sections.get(name, document)
        for line in (field.description or "").splitlines():
            place.add(tomlkit.comment(line.strip()))
        value = getattr(getattr(run, name) if name else run, last)
        if value is None:
            place.add(tomlkit.comment(f"{last} ="))
        elif isinstance(value, dict):
            table = tomlkit.inline_table()
            table.update(value)
            place.add(last, table)
        else:
            place.add(last, value)
    return tomlkit.dumps(document)
