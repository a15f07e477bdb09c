"""The models of a run: the nano models that ship with agentrl, directories, and models of the hub."""

from pathlib import Path
from typing import Any

from agentrl.models.hub import hub_directory, hub_name, is_hub_id
from agentrl.system.imports import imported_later

NANO = Path(__file__).parent / "nano"
"""Qwen3 architecture and chat format, 0.9 M parameters, warm-started on the calculator. Made by `make nano-model`."""
NANO_PLAYER = Path(__file__).parent / "nano_player"
"""The same, warm-started on random play of FrozenLake and Blackjack. Made by `make nano-player`."""


def model_directory(path: str) -> str:
    """Return the directory of a model, whole, as the working directory may change. Blocks while a model of the hub is downloaded.

    Args:
        path: A directory; `nano` or `nano_player`, which ship with agentrl; or the id of a hub model, `Qwen/Qwen3-0.6B`. Anything
            else is returned as it is.

    Raises:
        ConfigError: It has the form of a hub id, and the hub does not give it.
    """
    if shipped := {"nano": NANO, "nano_player": NANO_PLAYER}.get(path):
        return str(shipped)
    if path and Path(path).is_dir():
        return str(Path(path).absolute())
    return str(hub_directory(path)) if is_hub_id(path) else path


def model_name(directory: str) -> str:
    """Return the name under which a model is served: that of its directory, or of the hub model in it."""
    return hub_name(Path(directory)) or Path(directory).name


def load_description(model_path: str | Path) -> Any:
    """Return transformers' configuration of the model at `model_path`, without its dtype, and without loading torch.

    Raises:
        Exception: It cannot be read: transformers raises what it likes.
    """
    with imported_later("torch"):
        from transformers import AutoConfig

        # A dtype is one of torch's, and nobody's concern who reads this. Where it is None, `torch_dtype` counts, its older name.
        return AutoConfig.from_pretrained(model_path, dtype=False)
