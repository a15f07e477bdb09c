"""LoRA adapters, as a directory of weights holds them and as servers know them: one, or one for each role that is a policy of its own.

adapter_config.json, adapter_model.safetensors                  one, as peft writes it
roles/NAME/adapter_config.json, adapter_model.safetensors       one for each role; a checkpoint has the model beside the folder

A folder in `roles` is a role's, whatever it holds: what was copied by half is not a checkpoint of fewer roles.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError, EngineError
from agentrl.models.check import check_safetensors

ADAPTER_CONFIG = "adapter_config.json"
"""A directory of published weights that holds this file is a LoRA adapter, to be put on the model that is served."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""Its tensors, beside it."""
ROLES = "roles"
"""The folder that has a folder for each role."""


@dataclass(frozen=True)
class Adapter:
    """An adapter as servers know it. They report the version of the model under it alone: what an adapter makes has its."""

    name: str
    version: int
    directory: str
    """Where its files are, on the machine that has them loaded."""


def adapters_in(checkpoint: Path, version: int) -> dict[str, Adapter]:
    """Return the adapters in a directory of weights by role, with new names; {}: it holds a whole model alone.

    Raises:
        EngineError: A file is missing or damaged.
        OSError: One cannot be read.
    """
    try:
        check_weights(checkpoint)
    except ConfigError as error:
        raise EngineError(str(error)) from error
    found = {}
    for role, folder in adapter_folders(checkpoint).items():
        # Named as no others: servers that outlive this process may know adapters of others.
        name = "-".join(part for part in (f"v{version}", role, uuid.uuid4().hex) if part)
        found[role] = Adapter(name, version, str(folder))
    return found


def adapter_of(adapters: Mapping[str, Adapter], role: str) -> Adapter | None:
    """Return the adapter that answers a role; None: the served model, as long as there is none at all.

    Raises:
        EngineError: There are adapters, and none of this role.
    """
    if adapters and role not in adapters:
        known = "one for all roles" if "" in adapters else ", ".join(adapters)
        raise EngineError(f"no adapter of the role {role!r} is loaded, but {known}; see `trainer.lora.roles`")
    return adapters.get(role)


def adapter_folders(directory: Path) -> dict[str, Path]:
    """Return where the adapters of a directory are.

    Args:
        directory: Published weights, or a checkpoint.

    Returns:
        The folder of each role's adapter by the role's name, of the only adapter by "". {}: it holds a whole model and no role's adapter.
    """
    if (directory / ADAPTER_CONFIG).is_file() and not (directory / "config.json").exists():
        return {"": directory}
    return role_folders(directory)


def role_folders(directory: Path) -> dict[str, Path]:
    """Return the folder of each role that has an adapter in a directory, by the role's name; {}: there are no such roles."""
    found = sorted((directory / ROLES).glob("*/"))
    return {folder.name: folder for folder in found if not folder.name.startswith(".")}


def check_weights(directory: Path) -> None:
    """Check that the files of new weights are whole, as far as their headers say, before any server is given them.

    Args:
        directory: Published weights, or a checkpoint.

    Raises:
        ConfigError: A file is damaged, or an adapter has none.
        OSError: One cannot be read.
    """
    adapters = adapter_folders(directory)
    for folder in adapters.values():
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if not (folder / name).is_file():
                raise ConfigError(f"{folder} holds no {name}, so it is no LoRA adapter; copy it again")
        check_safetensors(folder / ADAPTER_WEIGHTS)
    if not adapters:
        for file in sorted(directory.glob("*.safetensors")):
            check_safetensors(file)
