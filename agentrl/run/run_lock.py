"""Lock a run directory: one process holds it at a time, and a run is looked for in it once it is held.

check_run_dir    early, so that an impossible start is refused before anything is loaded; it holds nothing
hold_run_dir     makes the directory, locks it, and checks again: another run may have come and gone since
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DiskError, StoreError
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.run.run_directory import read_config, whole_checkpoints
from agentrl.store.database import RESTORE
from agentrl.system.files import make_directory, write_whole
from agentrl.system.locks import DirectoryInUseError, lock_directory

ORPHAN_TIMEOUT_S = 60.0
"""How long the trainer of a run that was killed may take to finish what it is writing."""


def check_run_dir(run_dir: Path, *, resume: bool, begins_with: str = "store.sqlite") -> None:
    """Check that the run directory fits a new run, or the one being resumed.

    Args:
        run_dir: The directory, which need not be there.
        resume: Whether the run in it is to go on.
        begins_with: The file that a directory with a run holds.

    Raises:
        StoreError: It does not.
    """
    check_no_evaluation(run_dir)
    if begins_with != "store.sqlite" and (run_dir / "store.sqlite").is_file():
        raise StoreError(f"{run_dir} holds a run with rewards; go on with it by: agentrl train --resume {run_dir}")
    exists, found = (run_dir / begins_with).exists(), whole_checkpoints(run_dir)
    if exists and not resume:
        raise StoreError(
            f"{run_dir} holds a run already; go on with --resume {run_dir} (in Python, resume=True), or choose another `run_dir`"
        )
    if not exists and found:
        raise StoreError(f"{run_dir} holds no run: its {begins_with} is gone, {found[-1]} is there. {RESTORE}")
    if not exists and resume:
        raise StoreError(f"{run_dir} holds no run to resume")


@contextmanager
def hold_run_dir(config: RunConfig, *, resume: bool, begins_with: str = "store.sqlite") -> Iterator[int]:
    """Make a run's directory, if it is not there, and hold it for the length of the context. Forked processes do not.

    One that it made, and in which no run has begun, is removed again.

    Args:
        config: The run, with the directory of its model in `model.path`.
        resume: Whether the run in the directory is to go on.
        begins_with: The file that a directory with a run holds.

    Yields:
        The descriptor that holds it, for children that write into it too.

    Raises:
        StoreError: The directory cannot be written, another run holds it, or it does not fit the run.
        ConfigError: The run in it began with another model.
    """
    run_dir = Path(config.run_dir)
    made = not run_dir.exists()
    prepare_run_dir(run_dir)
    lock = lock_run(run_dir)
    try:
        check_run_dir(run_dir, resume=resume, begins_with=begins_with)
        if resume:
            _check_model(config)
        yield lock
    finally:
        if made and not (run_dir / begins_with).exists():
            shutil.rmtree(run_dir)
        os.close(lock)


def prepare_run_dir(run_dir: Path) -> None:
    """Make the run directory, if it is not there.

    Raises:
        StoreError: Nothing can be written into it.
        DiskError: Its disk is full.
    """
    with _writable(run_dir):
        make_directory(run_dir, 0o700)
        # A full disk takes a file, and nothing in it.
        write_whole(run_dir / "config.json.new", " " * 2**16)
        (run_dir / "config.json.new").unlink()


def lock_run(run_dir: Path) -> int:
    """Lock the run directory, and return the descriptor.

    Raises:
        StoreError: Another run holds it, or it cannot be written.
    """
    with _writable(run_dir):
        try:
            return lock_directory(run_dir, ORPHAN_TIMEOUT_S)
        except DirectoryInUseError as error:
            raise StoreError(f"{run_dir} is {error}; wait for it, or end it") from None


def _check_model(config: RunConfig) -> None:
    run_dir = Path(config.run_dir)
    began = read_config(run_dir).model.path
    if Path(began).resolve() != Path(config.model.path).resolve():
        raise ConfigError(
            f"model.path: the run in {run_dir} began with the model {began}, and cannot go on with {config.model.path}; leave "
            "`model.path` as it was, or start a new run in another `run_dir`"
        )


@contextmanager
def _writable(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # A start that is tried again finds room some day; it is not given permission by waiting.
        kind = DiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(
            f"the run directory {run_dir} cannot be written: {error.strerror}; make room or give permission, or choose another `run_dir`"
        ) from error
