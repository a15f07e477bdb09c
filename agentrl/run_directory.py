"""The directory of a run: whose it is, and how files in it are written so that a crash leaves none of them torn.

config.json         the run's configuration
store.sqlite        tasks, episodes, batches (`agentrl.rollout.store`)
metrics.jsonl       one line a training step
checkpoints/        step-000010/, ...
lock                held by the run that is going on, and by its trainer
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, load_config
from agentrl.errors import ConfigError, StoreError, one_line
from agentrl.models.check import check_checkpoint

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
    with _writable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        # A disk that is full takes a file, and nothing in it.
        write_whole(run_dir / "config.json.new", " " * 2**16)
        (run_dir / "config.json.new").unlink()


@contextmanager
def _writable(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the run directory {run_dir} cannot be written: {error.strerror}; make room or give permission, or choose another "
            "--run_dir"
        ) from error


def read_config(run_dir: Path, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """Return the configuration of the run in `run_dir`, changed by dotted `overrides`. Raises StoreError, ConfigError."""
    path = run_dir / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{run_dir} holds no run to resume: it has no config.json") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is not JSON: {one_line(error)}; restore it, or start a new run with another --run_dir"
        ) from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} holds no configuration; restore it, or start a new run with another --run_dir")
    return load_config((), overrides, **content)


def check_model(config: RunConfig) -> None:
    """Raise ConfigError unless `model.path` is the directory of a whole checkpoint."""
    check_checkpoint(config.model.path)
    if config.trainer.lora_rank is not None and find_spec("peft") is None:
        raise ConfigError("trainer.lora_rank needs peft: pip install 'agentrl[lora]'")


def lock_run(run_dir: Path) -> int:
    """Take hold of the run directory; the descriptor, for children that write into it too. Raises StoreError when another
    run holds it.

    The kernel lets go of it when the last process that holds the descriptor has ended, however it ended.
    """
    with _writable(run_dir):
        descriptor = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + ORPHAN_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
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
    partial.write_text(text)
    partial.replace(path)


def write_config(config: RunConfig) -> None:
    """Write a run's configuration into its directory."""
    write_whole(Path(config.run_dir) / "config.json", config.model_dump_json(indent=2) + "\n")


@contextmanager
def appending(path: Path) -> Iterator[Any]:
    """A file of lines to append to. A last line that a crash tore is cut off first."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.truncate(content.rfind(b"\n") + 1)
    with path.open("a") as file:
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


def weights_directory(run_dir: Path) -> Path:
    """Where a run's weights pass from trainer to engine: shared memory where there is some, else the run directory."""
    shared = Path("/dev/shm")  # noqa: S108
    if not (shared.is_dir() and os.access(shared, os.W_OK)):
        return run_dir / "weights"
    # Named by the run directory: what a killed run left behind is found and removed by the next life.
    return shared / ("agentrl-" + hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16])


@contextmanager
def empty_directory(directory: Path) -> Iterator[Path]:
    """A new directory, for the length of the context."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
