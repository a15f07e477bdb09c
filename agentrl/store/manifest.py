"""The manifest of a checkpoint, `checkpoint.json`: its step, and size and SHA-256 of every file in it."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import CheckpointError, one_line

MANIFEST = "checkpoint.json"
READERS = 4
"""Files that are read at the same time."""


@dataclass(frozen=True)
class FileSum:
    """The size and the digest of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint: what it says about itself."""

    step: int
    optimizer_steps: int
    """Since the run began."""
    files: dict[str, FileSum] = field(default_factory=dict, compare=False)
    """All files of its directory but itself, by their names in it."""


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of all files that `directory` holds now."""
    content = asdict(replace(manifest, files=_sums(directory, _names(directory))))
    (directory / MANIFEST).write_text(json.dumps(content | {"sha256": _own_sum(content)}) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: It is not there, or damaged.
    """
    path = directory / MANIFEST
    try:
        content = dict(json.loads(path.read_bytes()))
        if content.pop("sha256", None) != _own_sum(content):
            raise CheckpointError(f"{path} does not hold what was written: its SHA-256 is another")
        return msgspec.convert(content, Manifest)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged, or not of this agentrl: {one_line(error)}. A checkpoint of another version can be "
            f"the `model.path` of a new run: {directory}"
        ) from error


def check_files(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint that is whole.

    Raises:
        CheckpointError: It is damaged; the message names the file.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():  # sizes cost a look, hashing a large checkpoint minutes
        path = directory / name
        if path.is_file() and (size := path.stat().st_size) != expected.size:
            raise CheckpointError(f"{path} has {size} bytes, and was written with {expected.size}")
    for name, found in _sums(directory, list(manifest.files)).items():
        if found != manifest.files[name]:
            raise CheckpointError(f"{directory / name} does not hold what was written: its SHA-256 is another")
    return manifest


def unlisted_files(directory: Path, manifest: Manifest) -> list[str]:
    """Return the files in a checkpoint that its manifest does not know."""
    return sorted(set(_names(directory)) - set(manifest.files))


def _names(directory: Path) -> list[str]:
    paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST)


def _sums(directory: Path, names: list[str]) -> dict[str, FileSum]:
    with ThreadPoolExecutor(max_workers=READERS) as readers:
        return dict(zip(names, readers.map(lambda name: _sum(directory / name), names), strict=True))


def _sum(path: Path) -> FileSum:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return FileSum(file.tell(), digest.hexdigest())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _own_sum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
