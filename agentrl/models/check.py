"""Looks at the files of a checkpoint before anything is started on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, one_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "tekken.json")
MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors format allows."""


def check_checkpoint(path: str) -> None:
    """Check that `model.path` is the directory of a whole Hugging Face checkpoint.

    Reads its configuration, the names of its tokenizer's files, and the headers of its weights, not the weights themselves.

    Raises:
        ConfigError: It is not.
    """
    directory, named = Path(path), f"`model.path` = {path!r}"
    try:
        if not directory.is_dir():
            kept = ", ".join(sorted(path.name for path in directory.parent.glob("step-*[0-9]")))
            hub = "give that of a Hugging Face checkpoint, which `hf download NAME --local-dir DIRECTORY` writes"
            raise ConfigError(f"{named} is not a directory; {f'{directory.parent} holds {kept}' if kept else hub}")
        if (directory / "store.sqlite").is_file():
            raise ConfigError(f"{named} is the directory of a run; its checkpoints are in {directory / 'checkpoints'}")
        if not (directory / "config.json").is_file():
            raise ConfigError(f"{named} holds no config.json, so it is not a checkpoint")
        read_object(directory / "config.json")
        if not any((directory / name).is_file() for name in TOKENIZER_FILES):
            raise ConfigError(
                f"{named} holds no tokenizer ({', '.join(TOKENIZER_FILES)}); copy it from the model it was made of"
            )
        _check_weights(directory, named)
    except OSError as error:
        raise ConfigError(f"{named} cannot be read: {one_line(error)}") from error


def _check_weights(directory: Path, named: str) -> None:
    index = directory / "model.safetensors.index.json"
    files = sorted(directory.glob("*.safetensors"))
    if index.is_file():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ConfigError(f"{index} has no weight_map; copy the checkpoint again")
        missing = sorted({str(name) for name in shards.values()} - {file.name for file in files})
        if missing:
            raise ConfigError(f"{named} lacks {missing[0]}, which its index names; copy the checkpoint again")
    if not files:
        raise ConfigError(
            f"{named} holds no weights as .safetensors; copy the checkpoint again. Other forms may be pickles, which run code when "
            "they are read: if you trust them, convert them with transformers, save_pretrained(DIRECTORY)"
        )
    for file in files:
        check_safetensors(file)


def check_safetensors(file: Path) -> None:
    """Compare a file's size with what its header says: 8 bytes of length N, N bytes of JSON, then the tensors' bytes.

    Raises:
        ConfigError: They differ.
    """
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = content.read(length) if 8 + length <= min(size, MAX_HEADER_BYTES) else b""
    try:
        tensors = json.loads(header)
        end = max((tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"), default=0)
        whole = 8 + length + end == size
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ConfigError(f"{file} is damaged: its header does not fit its {size} bytes; copy the checkpoint again")


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ConfigError: It holds none.
    """
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {one_line(error)}; copy the checkpoint again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} holds no JSON object; copy the checkpoint again")
    return content
