"""The directory of a run, and how files in it are written so that no crash and no power cut leaves one torn. `run_lock` says whose it is.

config.json         the run's configuration
store.sqlite        tasks, episodes, batches (`agentrl.store.store`)
metrics.jsonl       one line a training step
summary.json        its metrics, once it has come to its end
failure.txt         why its newest start failed, if it did
checkpoints/        step-000010/, ...
damaged/            checkpoints that were found not to hold what was written
lock                held by the run that is going on, and by its trainer

Only the user who runs it can read what a run writes: the directory that it makes has mode 0700, files have 0600. A directory that was
there before keeps its mode.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentrl.config.load import config_of
from agentrl.config.run import RunConfig, config_text
from agentrl.config.trainer import PUBLISHED_VERSIONS_KEPT
from agentrl.errors import ConfigError, StoreError, one_line
from agentrl.store.database import RESTORE, check_pages
from agentrl.store.store import Store
from agentrl.system.files import make_directory, open_private, sync, write_whole
from agentrl.system.locks import room_in_shared_memory, shared_memory_directory

PUBLISHED_VERSIONS = PUBLISHED_VERSIONS_KEPT + 2
"""Versions of the weights that are there at the same time, at most: those that are kept, one that is written, and one to spare."""
SUMMARY, FAILURE = "summary.json", "failure.txt"

_WHOLE = re.compile(r"step-\d{6,}")
_PARTIAL = re.compile(r"step-\d{6,}\.partial")


def with_run_dir(config: RunConfig, name: str = "runs/%Y-%m-%d-%H%M%S") -> RunConfig:
    """Return the configuration with a run directory: where it has none, one that is named by the time (`name`, for `strftime`)."""
    return config if config.run_dir else config.model_copy(update={"run_dir": time.strftime(name)})


def write_config(config: RunConfig) -> None:
    """Write the configuration of a start into its run's directory."""
    _write_config(Path(config.run_dir), config_text(config))


def _write_config(run_dir: Path, config: str) -> None:
    write_whole(run_dir / "config.json", config)
    for end_of_last_start in (SUMMARY, FAILURE):
        (run_dir / end_of_last_start).unlink(missing_ok=True)


def read_config(run_dir: Path, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """Return the configuration of the run in `run_dir`.

    Args:
        run_dir: The run's directory, whatever the configuration says.
        overrides: Values of dotted keys that are to be others.

    Raises:
        StoreError: It cannot be read, or is of another version of agentrl.
        ConfigError: A key of the overrides is wrong, or its value.
    """
    if overrides and "run_dir" in overrides:
        raise ConfigError(
            f"run_dir: the run in {run_dir} stays where it is; leave `run_dir` out, or copy the run and name the copy"
        )
    path = run_dir / "config.json"
    try:
        content = json.loads(path.read_bytes()) | {"run_dir": str(run_dir)}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"{run_dir} holds no run to resume: it has no config.json") from error
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({one_line(error)}): restore it, or begin a new run in another `run_dir`"
        ) from error
    try:
        config_of(content)
    except ConfigError as error:
        raise StoreError(
            f"the configuration of {run_dir} is none of this version of agentrl ({one_line(error, 200)}): go on with the version that "
            "wrote it, or begin a new run whose `model.path` is the newest of its checkpoints"
        ) from error
    return config_of(content, overrides)


@contextmanager
def appending(path: Path) -> Iterator[Any]:
    """Yield a file of JSON lines to append to, on the disk when it is closed. What a crash tore, and all after it, is cut off first."""
    with open_private(path, "ab") as file:
        file.truncate(sum(len(line) for line, _ in _whole_lines(path.read_bytes())))
    sync(path.parent)
    with open_private(path, "a") as file:
        try:
            yield file
        finally:
            file.flush()
            os.fsync(file.fileno())


def _whole_lines(content: bytes) -> Iterator[tuple[bytes, Any]]:
    """Yield the lines of a file of JSON lines with their values, up to the first that a crash tore: its end, or a part of it, is missing."""
    with suppress(ValueError):
        for line in content.splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield line, json.loads(line)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the run's steps.

    Where steps were lost by a crash, and the run went on from before them, they are those of the later start.
    """
    path = run_dir / "metrics.jsonl"
    steps: list[dict[str, Any]] = []
    for _, row in _whole_lines(path.read_bytes()) if path.exists() else ():
        while steps and steps[-1]["step"] >= row["step"]:
            steps.pop()
        steps.append(row)
    return steps


def read_summary(run_dir: Path) -> dict[str, Any] | None:
    """Return the metrics of a whole run; None before its end.

    Raises:
        StoreError: They cannot be read.
    """
    path = run_dir / SUMMARY
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}; agentrl audit {run_dir} tells what else is damaged"
        ) from error


def checkpoint_directory(run_dir: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def finished_step(run_dir: Path, config: RunConfig) -> int | None:
    """Return the last step of a run that has come to its end or its goal, and whose last checkpoint is there; None: it is no such run."""
    summary, goal = read_summary(run_dir), config.eval.stop_at
    if not summary or not checkpoint_directory(run_dir, summary["steps"]).is_dir():
        return None
    reached = goal is not None and summary["eval_after"] is not None and summary["eval_after"] >= goal
    return int(summary["steps"]) if reached or summary["steps"] >= config.steps else None


def quarantine(run_dir: Path, checkpoint: Path) -> Path | None:
    """Move what is left of a damaged checkpoint out of the way, into `damaged/`.

    Returns:
        Where it is now; None: nothing was left here.
    """
    if not checkpoint.exists():
        return None
    make_directory(folder := run_dir / "damaged")
    places = (folder / f"{checkpoint.name}-{number}" for number in itertools.count(1))
    return checkpoint.rename(next(place for place in places if not place.exists()))


@contextmanager
def begin_store(run_dir: Path, tasks: str, config: str, *, resume: bool) -> Iterator[Store]:
    """Yield the store of a run that starts, or starts again; delete what its last start left half made, and note its configuration.

    Args:
        run_dir: The run's directory.
        tasks: What tells the run's tasks from others.
        config: The configuration, as JSON.
        resume: Whether the run goes on.

    Raises:
        StoreError: The store is missing, empty, damaged, older than the checkpoints beside it, or of other tasks. Nothing has been
            deleted then.
    """
    with Store(run_dir / "store.sqlite", must_exist=resume) as store:
        if resume:
            store.read(lambda db: check_pages(db, run_dir / "store.sqlite"))
        for unknown in store.read(lambda db: unknown_checkpoints(db, whole_checkpoints(run_dir))):
            raise StoreError(f"{unknown}. {RESTORE}; to go on from what this store knows, move it elsewhere.")
        store.check_tasks(tasks)
        remove_unfinished(run_dir, store.unwanted_checkpoints())
        store.begin_restart(tasks, config)
        if resume:  # a new run has it since before its store
            _write_config(run_dir, config)
        yield store


def unknown_checkpoints(db: sqlite3.Connection, found: Sequence[Path]) -> list[str]:
    """Return what is wrong with those of a run's checkpoints, `found` in its directory, that its store knows nothing of."""
    rows = db.execute("SELECT path FROM checkpoints UNION SELECT path FROM begun_checkpoints")
    known = {Path(path).name for (path,) in rows}
    why = "it is older than its checkpoints, or of another run"
    return [f"the store knows nothing of {path}: {why}" for path in found if path.name not in known]


def remove_unfinished(run_dir: Path, unwanted: Sequence[Path]) -> None:
    """Delete the checkpoints that a crash left half made, and those `unwanted`; nothing else."""
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
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, by its directory's name."""
    return int(checkpoint.name.removeprefix("step-"))


@contextmanager
def weights_directory(config: RunConfig) -> Iterator[Path]:
    """Yield where a run's weights pass from trainer to engine, for the length of the context.

    It is in shared memory where there is room for `PUBLISHED_VERSIONS` of them, else in the run directory.
    """
    if room_in_shared_memory(PUBLISHED_VERSIONS * published_bytes(config)):
        with shared_memory_directory(config.run_dir) as directory:
            yield directory
    else:
        directory = Path(config.run_dir).absolute() / "weights"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def published_bytes(config: RunConfig) -> int:
    """About how much the trainer publishes with every step, at most: all weights in float32, or nothing to speak of of an adapter."""
    if config.trainer.lora is not None:
        return 0
    return 2 * sum(file.stat().st_size for file in Path(config.model.path).glob("*.safetensors"))  # from 16 bits
