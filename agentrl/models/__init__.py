"""The models of a run: the nano models that ship with agentrl, directories, and models of the hub."""

from pathlib import Path
from typing import Any

from agentrl.models.model_directory import NANO, NANO_PLAYER, model_directory, model_name
from agentrl.system.imports import imported_later

__all__ = ["NANO", "NANO_PLAYER", "load_description", "model_directory", "model_name"]


def load_description(model_path: str | Path) -> Any:
    """Return transformers' configuration of the model at `model_path`, without its dtype, and without loading torch.

    Raises:
        Exception: It cannot be read: transformers raises what it likes.
    """
    with imported_later("torch"):
        from transformers import AutoConfig

        # A dtype is one of torch's, and nobody's concern who reads this. Where it is None, `torch_dtype` counts, its older name.
        return AutoConfig.from_pretrained(model_path, dtype=False)
