"""Models of the Hugging Face hub, by their id: `Qwen/Qwen3-0.6B` is downloaded once, into the cache that every Hugging Face library shares."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.errors import ConfigError, one_line

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
"""What a checkpoint consists of here. Pickled weights, which run code when they are read, are not among it."""


def is_hub_id(path: str) -> bool:
    """Return whether `path` has the form of a hub id, `OWNER/NAME`, and is no directory."""
    return bool(_ID.fullmatch(path)) and not Path(path).is_dir()


def hub_directory(model_id: str) -> Path:
    """Return the directory of a hub model in the cache, and download what is missing of it. Blocks, and shows its progress.

    `HF_HOME` and `HF_HUB_CACHE` say where the cache is. With `HF_HUB_OFFLINE=1` only the cache is asked.

    Raises:
        ConfigError: The hub does not give the model, or cannot be reached, and the cache does not hold it.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_id, allow_patterns=_FILES))
    except Exception as error:  # the client's, httpx's, the disk's
        raise ConfigError(
            f"`model.path` = {model_id!r} is no directory, and no model that the Hugging Face hub gives: {type(error).__name__}: "
            f"{one_line(error).rstrip('.')}. Check the name; on a machine without a network, download it elsewhere and copy its directory"
        ) from error


def hub_name(directory: Path) -> str | None:
    """Return the name of the hub model whose directory in the cache this is, without its owner; None for any other directory.

    The cache lays models out as `models--OWNER--NAME/snapshots/COMMIT`.
    """
    if directory.parent.name != "snapshots":
        return None
    kind, *parts = directory.parent.parent.name.split("--")
    return parts[-1] if kind == "models" and parts else None
