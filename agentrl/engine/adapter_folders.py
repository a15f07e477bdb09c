"""The LoRA adapters that a directory of weights holds: one, or one for each role that is a policy of its own.

adapter_config.json, adapter_model.safetensors                  one, as peft writes it
roles/NAME/adapter_config.json, adapter_model.safetensors       one for each role; a checkpoint has the model beside the folder
"""

from __future__ import annotations

from pathlib import Path

from agentrl.engine.protocol import ADAPTER_CONFIG

ROLES = "roles"
"""The folder that has a folder for each role."""


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
    found = sorted((directory / ROLES).glob(f"*/{ADAPTER_CONFIG}"))
    return {file.parent.name: file.parent for file in found}
