"""The directory of a run: whose it is, and how files in it are written so that a crash leaves none of them torn.

config.json         the run's configuration
store.sqlite        tasks, episodes, batches (`agentrl.rollout.store`)
metrics.jsonl       one line a training step
checkpoints/        step-000010/, ...
lock                held by the run that is going on, and by its trainer

Only the user who runs it can read what a run writes: the directory that it makes has mode 0700, files have 0600. A directory that was
there before keeps its mode.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError
from agentrl.privacy import make_private_directory, open_private, private
from agentrl.process_limits import room_in_shared_memory
from agentrl.shared_memory import shared_memory_directory

PUBLISHED_VERSIONS = 10
"""Versions of the weights that are there at the same time, at most: those that the trainer keeps, one that it writes, and one to spare."""
ORPHAN_TIMEOUT_S = 60.0
"""How long the trainer of a run that was killed may take to finish what it is writing."""


def prepare_run_dir(config: RunConfig, *, resume: bool, begins_with: str = "store.sqlite") -> None:
    """Check that the run directory fits a new run, or the one being resumed. One that holds the file `begins_with` holds a run."""
    run_dir = Path(config.run_dir)
    check_model(config)
    exists = (run_dir / begins_with).exists()
    if exists and not resume:
        raise StoreError(f"{run_dir} holds a run already; go on with --resume {run_dir}, or choose another --run_dir")
    if resume and not exists:
        raise StoreError(f"{run_dir} holds no run to resume")
    make_private_directory(run_dir)


def check_model(config: RunConfig) -> None:
    """Raise ConfigError unless `model.path` is the directory of a checkpoint."""
    if not Path(config.model.path).is_dir():
        raise ConfigError(
            f"model.path = {config.model.path!r} is not a directory; give the directory of a Hugging Face checkpoint"
        )
    if not (Path(config.model.path) / "config.json").is_file():
        raise ConfigError(f"model.path = {config.model.path!r} holds no config.json, so it is not a checkpoint")
    if config.trainer.lora_rank is not None and find_spec("peft") is None:
        raise ConfigError("trainer.lora_rank needs peft: pip install 'agentrl[lora]'")


def lock_run(run_dir: Path) -> int:
    """Take hold of the run directory; the descriptor, for children that write into it too. Raises StoreError when another
    run holds it.

    The kernel lets go of it when the last process that holds the descriptor has ended, however it ended.
    """
    descriptor = private(str(run_dir / "lock"), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + ORPHAN_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode().strip()
            # A run that was killed may have left a trainer that is still writing; that ends by itself.
            if _alive(owner) or time.monotonic() > deadline:
                os.close(descriptor)
                raise StoreError(
                    f"{run_dir} is in use by the run of process {owner or 'unknown'}; wait for it, or end it"
                ) from None
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole, or as it was before."""
    partial = path.with_name(path.name + ".partial")
    with open_private(partial, "w") as file:
        file.write(text)
    partial.replace(path)


def write_config(config: RunConfig) -> None:
    """Write a run's configuration into its directory."""
    write_whole(Path(config.run_dir) / "config.json", config.model_dump_json(indent=2) + "\n")


@contextmanager
def appending(path: Path) -> Iterator[Any]:
    """A file of lines to append to. A last line that a crash tore is cut off first."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n"):
        with open_private(path, "ab") as file:
            file.truncate(content.rfind(b"\n") + 1)
    with open_private(path, "a") as file:
        yield file


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of the run's steps; where a step was taken again after a crash, the last time counts."""
    path = run_dir / "metrics.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(ValueError):  # a torn line
            rows.append(json.loads(line))
    return list({row["step"]: row for row in rows}.values())


def checkpoint_directory(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def remove_unfinished(run_dir: Path, kept: Sequence[Path]) -> None:
    """Delete the checkpoints that a crash left half made, or no longer wanted."""
    names = {path.name for path in kept}
    for path in (run_dir / "checkpoints").iterdir() if (run_dir / "checkpoints").is_dir() else []:
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def weights_directory(config: RunConfig) -> Iterator[Path]:
    """Where a run's weights pass from trainer to engine, for the length of the context: shared memory where there is room for
    `PUBLISHED_VERSIONS` of them, else the run directory."""
    if room_in_shared_memory(PUBLISHED_VERSIONS * published_bytes(config)):
        with shared_memory_directory(config.run_dir) as directory:
            yield directory
    else:
        with empty_directory(Path(config.run_dir) / "weights") as directory:
            yield directory


def published_bytes(config: RunConfig) -> int:
    """About how much the trainer publishes with every step, at most: all weights in float32, or nothing to speak of of an adapter."""
    if config.trainer.lora_rank is not None:
        return 0
    return sum(_in_float32(file) for file in Path(config.model.path).glob("*.safetensors"))


def _in_float32(safetensors: Path) -> int:
    """Bytes of the file's tensors in float32, by its header."""
    size = safetensors.stat().st_size
    with safetensors.open("rb") as file:
        header = file.read(8)
        header = file.read(min(int.from_bytes(header, "little"), size))
    try:
        tensors = json.loads(header)
        return sum(4 * math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError):  # whoever loads it will say what is wrong with it
        return size


@contextmanager
def empty_directory(directory: Path) -> Iterator[Path]:
    """A new directory, for the length of the context."""
    shutil.rmtree(directory, ignore_errors=True)
    make_private_directory(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
