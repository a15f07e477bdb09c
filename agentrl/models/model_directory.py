"""The directory of a model: one that ships with agentrl, one of the user's, or one of the Hugging Face hub, by its id.

`Qwen/Qwen3-0.6B` is downloaded once, into the cache that every Hugging Face library shares.
"""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.errors import ConfigError, one_line

NANO = Path(__file__).parent / "nano"
"""Qwen3 architecture and chat format, 0.9 M parameters, warm-started on the calculator. Made by `make nano-model`."""
NANO_PLAYER = Path(__file__).parent / "nano_player"
"""The same, warm-started on random play of FrozenLake and Blackjack. Made by `make nano-player`."""
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
    """Return the name under which a model is served: that of its directory, or of the hub model in it, without its owner.

    The hub's cache lays models out as `models--OWNER--NAME/snapshots/COMMIT`.
    """
    path = Path(directory)
    kind, *parts = path.parent.parent.name.split("--")
    is_cached = path.parent.name == "snapshots" and kind == "models" and parts
    return parts[-1] if is_cached else path.name
