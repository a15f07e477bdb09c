"""Read a model's config.json as transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.machine.late_import import imported_later


def load_description(model_path: str | Path) -> Any:
    """Return transformers' configuration of the model at `model_path`, without its dtype, and without loading torch.

    Raises:
        Exception: It cannot be read: transformers raises what it likes.
    """
    with imported_later("torch"):
        from transformers import AutoConfig

        # A dtype is one of torch's, and nobody's concern who reads this. Where it is None, `torch_dtype` counts, its older name.
        return AutoConfig.from_pretrained(model_path, dtype=False)
