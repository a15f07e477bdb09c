"""The directory of a run, and how files in it are written so that no crash and no power cut leaves one torn. `run_lock` says whose it is.

config.json         the run's configuration
store.sqlite        tasks, episodes, batches (`agentrl.store.store`)
metrics.jsonl       one line a training step
checkpoints/        step-000010/, ...
damaged/            checkpoints that were found not to hold what was written
lock                held by the run that is going on, and by its trainer

Only the user who runs it can read what a run writes: the directory that it makes has mode 0700, files have 0600. A directory that was
there before keeps its mode.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, config_of
from agentrl.errors import ConfigError, StoreError, one_line
from agentrl.store.database import RESTORE, reading_uri
from agentrl.system.files import open_private, sync, write_whole
from agentrl.system.locks import room_in_shared_memory, shared_memory_directory

PUBLISHED_VERSIONS = 10
"""Versions of the weights that are there at the same time, at most: those that the trainer keeps, one that it writes, and one to spare."""

_WHOLE = re.compile(r"step-\d{6,}")
_PARTIAL = re.compile(r"step-\d{6,}\.partial")


def with_run_dir(config: RunConfig, name: str = "runs/%Y-%m-%d-%H%M%S") -> RunConfig:
    """Return the configuration with a run directory: where it has none, one that is named by the time (`name`, for `strftime`)."""
    return config if config.run_dir else config.model_copy(update={"run_dir": time.strftime(name)})


def write_config(config: RunConfig) -> None:
    """Write a run's configuration into its directory."""
    write_whole(Path(config.run_dir) / "config.json", config_text(config))


def config_text(config: RunConfig) -> str:
    """Return what config.json holds: all but where the run lies, so that a run which is copied or moved is the one in its new place."""
    return config.model_dump_json(indent=2, exclude={"run_dir"}) + "\n"


def read_config(run_dir: Path, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """Return the configuration of the run in `run_dir`; that of its newest start in the store where `config.json` cannot be read.

    Args:
        run_dir: The run's directory, whatever the configuration says.
        overrides: Values of dotted keys that are to be others.

    Raises:
        StoreError: Neither can be read, or what is read is of another version of agentrl.
        ConfigError: A key of the overrides is wrong, or its value.
    """
    if overrides and "run_dir" in overrides:
        raise ConfigError(
            f"run_dir: the run in {run_dir} stays where it is; leave `run_dir` out, or copy the run and name the copy"
        )
    path = run_dir / "config.json"
    content: dict[str, Any] | None
    try:
        content = _json_object(path)
    except (OSError, ValueError) as error:
        store = run_dir / "store.sqlite"
        if not path.is_file() and not store.is_file():
            raise StoreError(f"{run_dir} holds no run to resume") from error
        content = _config_in(store) if store.is_file() else None
        if content is None:
            raise StoreError(
                f"{path} cannot be read ({one_line(error)}), and no store has a copy of it: restore it, or begin a new run in another "
                "`run_dir`"
            ) from error
    content |= {"run_dir": str(run_dir)}
    try:
        config_of(content)
    except ConfigError as error:
        raise StoreError(
            f"the configuration of {run_dir} is none of this version of agentrl ({one_line(error, 200)}): go on with the version that "
            "wrote it, or begin a new run whose `model.path` is the newest of its checkpoints"
        ) from error
    return config_of(content, overrides)


def _json_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it holds no configuration")
    return content


def _config_in(store: Path) -> dict[str, Any] | None:
    """Return the configuration of the newest start in a store, None where there is none."""
    try:
        db = sqlite3.connect(reading_uri(store), uri=True)
        try:
            (text,) = db.execute("SELECT config FROM restarts ORDER BY restart DESC LIMIT 1").fetchone()
        finally:
            db.close()
        return dict(json.loads(text)) or None
    except (sqlite3.Error, TypeError, ValueError):
        return None


@contextmanager
def appending(path: Path) -> Iterator[Any]:
    """Yield a file of JSON lines to append to, on the disk when it is closed. What a crash tore, and all after it, is cut off first."""
    with open_private(path, "ab") as file:
        file.truncate(sum(map(len, whole_lines(path.read_bytes()))))
    sync(path.parent)
    with open_private(path, "a") as file:
        try:
            yield file
        finally:
            file.flush()
            os.fsync(file.fileno())


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines of a file of JSON lines, up to the first that a crash tore: its end, or any part of it, is missing."""
    lines = []
    for line in content.splitlines(keepends=True):
        try:
            json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        lines.append(line)
    return lines


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the run's steps.

    Where steps were lost by a crash, and the run went on from before them, they are those of the later start. A line that is none
    of a step, which the audit reports, is passed over.
    """
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in whole_lines(path.read_bytes())] if path.exists() else []
    steps: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row, dict) and type(row.get("step")) is int:
            while steps and steps[-1]["step"] >= row["step"]:
                steps.pop()
            steps.append(row)
    return steps


def read_mean_reward(evaluation: Path) -> float | None:
    """Return the mean reward of an evaluation that a start of the run wrote; None where there is none that can be read."""
    try:
        return float(json.loads(evaluation.read_bytes())["mean_reward"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def summary_of_finished(config: RunConfig) -> dict[str, Any] | None:
    """Return the summary of a run that has ended with all its steps.

    None for one that has not, or whose last step is none of a kept checkpoint.
    """
    run_dir = Path(config.run_dir)
    try:
        summary = json.loads((run_dir / "summary.json").read_bytes())
        done = type(summary["steps"]) is int and summary["steps"] >= config.steps
        return dict(summary) if done and checkpoint_directory(run_dir, summary["steps"]).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def checkpoint_directory(run_dir: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def quarantine(run_dir: Path, checkpoint: Path) -> Path | None:
    """Move what is left of a damaged checkpoint out of the way, into `damaged/`.

    Returns:
        Where it is now; None: nothing was left here.
    """
    folder = run_dir / "damaged"
    folder.mkdir(exist_ok=True)
    target = next(
        path for number in itertools.count(1) if not (path := folder / f"{checkpoint.name}-{number}").exists()
    )
    try:
        checkpoint.rename(target)
    except FileNotFoundError:
        return None
    return target


def check_checkpoints(run_dir: Path, known: Sequence[Path]) -> None:
    """Check that the store knows every checkpoint: one that does not is an older one, or another run's.

    Args:
        run_dir: The run's directory.
        known: The checkpoints that the store knows.

    Raises:
        StoreError: There is another.
    """
    names = {path.name for path in known}
    for path in whole_checkpoints(run_dir):
        if path.name not in names:
            raise StoreError(
                f"{run_dir / 'store.sqlite'} knows nothing of {path}: it is older than its checkpoints, or of another run. {RESTORE}; "
                f"to go on from what this store knows, move {path.name} elsewhere."
            )


def remove_unfinished(run_dir: Path, unwanted: Sequence[Path]) -> None:
    """Delete the checkpoints that a crash left half made, and those `unwanted`; nothing else, whatever it is."""
    folder = run_dir / "checkpoints"
    if not folder.is_dir():
        return
    names = {path.name for path in unwanted}
    for path in folder.iterdir():
        if path.name in names or _PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    sync(folder)


def whole_checkpoints(run_dir: Path) -> list[Path]:
    """Return the directories that are called what a checkpoint is called, oldest first."""
    folder = run_dir / "checkpoints"
    found = [path for path in folder.iterdir() if _WHOLE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


@contextmanager
def weights_directory(config: RunConfig) -> Iterator[Path]:
    """Yield where a run's weights pass from trainer to engine, for the length of the context.

    It is in shared memory where there is room for `PUBLISHED_VERSIONS` of them, else in the run directory.
    """
    if room_in_shared_memory(PUBLISHED_VERSIONS * published_bytes(config)):
        with shared_memory_directory(config.run_dir) as directory:
            yield directory
    else:
        with empty_directory(Path(config.run_dir).absolute() / "weights") as directory:
            yield directory


def published_bytes(config: RunConfig) -> int:
    """About how much the trainer publishes with every step, at most: all weights in float32, or nothing to speak of of an adapter."""
    if config.trainer.lora is not None:
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
    """Yield a new directory, for the length of the context."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
