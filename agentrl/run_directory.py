"""The directory of a run: whose it is, and how files in it are written so that a crash leaves none of them torn.

config.json         the run's configuration
store.sqlite        tasks, episodes, batches (`agentrl.rollout.store`)
metrics.jsonl       one line a training step
checkpoints/        step-000010/, ...
damaged/            checkpoints that were found not to hold what was written
lock                held by the run that is going on, and by its trainer
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError

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
    run_dir.mkdir(parents=True, exist_ok=True)


def check_model(config: RunConfig) -> None:
    """Raise ConfigError unless `model.path` is the directory of a checkpoint."""
    if not Path(config.model.path).is_dir():
        raise ConfigError(
            f"model.path = {config.model.path!r} is not a directory; give the directory of a Hugging Face checkpoint"
        )
    if not (Path(config.model.path) / "config.json").is_file():
        raise ConfigError(f"model.path = {config.model.path!r} holds no config.json, so it is not a checkpoint")
    if not any(Path(config.model.path).glob("*.safetensors")):
        raise ConfigError(
            f"model.path = {config.model.path!r} holds no weights as .safetensors; other forms may be pickles, which run code when they "
            "are read. If you trust it, convert it with transformers: save_pretrained(DIRECTORY)"
        )
    if config.trainer.lora_rank is not None and find_spec("peft") is None:
        raise ConfigError("trainer.lora_rank needs peft: pip install 'agentrl[lora]'")


def lock_run(run_dir: Path) -> int:
    """Take hold of the run directory; the descriptor, for children that write into it too. Raises StoreError when another
    run holds it.

    The kernel lets go of it when the last process that holds the descriptor has ended, however it ended.
    """
    descriptor = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT, 0o644)
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
    partial.write_text(text)
    partial.replace(path)


def write_config(config: RunConfig) -> None:
    """Write a run's configuration into its directory."""
    write_whole(Path(config.run_dir) / "config.json", config.model_dump_json(indent=2) + "\n")


def read_config(run_dir: Path) -> dict[str, Any]:
    """A run's configuration, as JSON; that of its newest life in the store, where `config.json` cannot be read. Raises StoreError
    when that cannot be read either."""
    path = run_dir / "config.json"
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text()))
        return content
    except (OSError, ValueError, TypeError) as error:
        store = run_dir / "store.sqlite"
        if not path.is_file() and not store.is_file():
            raise StoreError(f"{run_dir} holds no run to resume") from error
        kept = _config_in(store) if store.is_file() else None
        if kept is None:
            raise StoreError(
                f"{path} cannot be read ({error}), and no store has a copy of it: restore it, or begin a new run"
            ) from error
        return kept


def _config_in(store: Path) -> dict[str, Any] | None:
    """The configuration of the newest life in a store, None where there is none."""
    try:
        db = sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)
        try:
            (text,) = db.execute("SELECT config FROM lives ORDER BY life DESC LIMIT 1").fetchone()
        finally:
            db.close()
        return dict(json.loads(text)) or None
    except (sqlite3.Error, TypeError, ValueError):
        return None


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


def set_aside(run_dir: Path, checkpoint: Path) -> Path:
    """Move what is left of a damaged checkpoint out of the way, into `damaged/`; where it is now."""
    folder = run_dir / "damaged"
    folder.mkdir(exist_ok=True)
    target = next(
        path for number in itertools.count(1) if not (path := folder / f"{checkpoint.name}-{number}").exists()
    )
    with suppress(FileNotFoundError):
        checkpoint.rename(target)
    return target


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
