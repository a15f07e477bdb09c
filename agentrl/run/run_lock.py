"""Lock a run directory: one process holds it at a time, and a run is looked for in it once it is held.

    check_run_dir    early, so that what cannot be is refused before anything is loaded; it holds nothing
    hold_run_dir     makes the directory, takes its lock, and checks the same again: another run may have come and gone meanwhile

The kernel lets go of the lock when the last process that holds its descriptor has ended, however it ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError
from agentrl.evaluation.directory import check_holds_no_evaluation
from agentrl.machine.directory_lock import LOCK_NAME, is_held, open_lock, started, take
from agentrl.machine.disk import make_directory
from agentrl.machine.whole import write_whole
from agentrl.run.run_directory import read_config, whole_checkpoints
from agentrl.store.database import RESTORE

ORPHAN_TIMEOUT_S = 60.0
"""How long the trainer of a run that was killed may take to finish what it is writing."""
RETRY_EVERY_S = 0.05


def in_use(run_dir: Path) -> bool:
    """Return whether a run goes on in the directory."""
    try:
        descriptor = os.open(run_dir / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        return is_held(descriptor)
    finally:
        os.close(descriptor)


def check_run_dir(run_dir: Path, *, resume: bool, begins_with: str = "store.sqlite") -> None:
    """Check that the run directory fits a new run, or the one being resumed, and that no run goes on in it.

    Args:
        run_dir: The directory, which need not be there.
        resume: Whether the run in it is to go on.
        begins_with: The file that a directory with a run holds.

    Raises:
        StoreError: It does not, or one does.
    """
    _check_content(run_dir, resume=resume, begins_with=begins_with)
    try:
        descriptor = os.open(run_dir / LOCK_NAME, os.O_RDONLY)
    except OSError:  # nobody holds it, or `prepare_run_dir` says what is wrong
        return
    try:
        if is_held(descriptor) and (owner := _owner(descriptor)).alive:
            raise StoreError(_in_use(run_dir, owner))
    finally:
        os.close(descriptor)


@contextmanager
def hold_run_dir(config: RunConfig, *, resume: bool, begins_with: str = "store.sqlite") -> Iterator[int]:
    """Make a run's directory, if it is not there, and hold it for the length of the context. No process that is forked meanwhile does.

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
    prepare_run_dir(run_dir)
    lock = lock_run(run_dir)
    try:
        _check_content(run_dir, resume=resume, begins_with=begins_with)
        if resume:
            _check_model(config)
        yield lock
    finally:
        os.close(lock)


def prepare_run_dir(run_dir: Path) -> None:
    """Make the run directory, if it is not there.

    Raises:
        StoreError: Nothing can be written into it.
    """
    with _writable(run_dir):
        make_directory(run_dir, 0o700)
        # A disk that is full takes a file, and nothing in it.
        write_whole(run_dir / "config.json.new", " " * 2**16)
        (run_dir / "config.json.new").unlink()


def lock_run(run_dir: Path) -> int:
    """Take hold of the run directory.

    Returns:
        The descriptor, for children that write into it too.

    Raises:
        StoreError: Another run holds it, or it cannot be written.
    """
    with _writable(run_dir):
        descriptor = open_lock(run_dir)
    deadline = time.monotonic() + ORPHAN_TIMEOUT_S
    try:
        while not take(descriptor):
            owner = _owner(descriptor)
            # Who only asks whether it is held has it for a moment. A run that was killed may have left a trainer that is still
            # writing; that ends by itself.
            if is_held(descriptor) and (owner.alive or time.monotonic() > deadline):
                raise StoreError(_in_use(run_dir, owner))
            time.sleep(RETRY_EVERY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {started(os.getpid()) or ''}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_content(run_dir: Path, *, resume: bool, begins_with: str) -> None:
    check_holds_no_evaluation(run_dir)
    exists = (run_dir / begins_with).exists()
    if exists and not resume:
        raise StoreError(
            f"{run_dir} holds a run already; go on with `resume=True` in {run_dir}, or choose another `run_dir`"
        )
    if resume and not exists:
        raise StoreError(f"{run_dir} holds no run to resume{_lost_store(run_dir)}")
    if begins_with == "store.sqlite" and not exists and (lost := _lost_store(run_dir)):
        raise StoreError(f"{run_dir} holds no run{lost}")


def _check_model(config: RunConfig) -> None:
    run_dir = Path(config.run_dir)
    began = read_config(run_dir).model.path
    if Path(began).resolve() != Path(config.model.path).resolve():
        raise ConfigError(
            f"model.path: the run in {run_dir} began with the model {began}, and cannot go on with {config.model.path}; leave "
            "`model.path` as it was, or start a new run in another `run_dir`"
        )


def _lost_store(run_dir: Path) -> str:
    """Return what to say of a directory whose store is gone and whose checkpoints are there; nothing, if it is not one."""
    found = whole_checkpoints(run_dir)
    return f": its store.sqlite is gone, {found[-1]} is there. {RESTORE}" if found else ""


@contextmanager
def _writable(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the run directory {run_dir} cannot be written: {error.strerror}; make room or give permission, or choose another "
            "`run_dir`"
        ) from error


@dataclass(frozen=True)
class _Owner:
    """The process that took the lock last, as it wrote itself down."""

    pid: str
    started: str
    """When it started, as `agentrl.machine.directory_lock` says it; empty where that is unknown."""

    @property
    def alive(self) -> bool:
        """Whether it goes on. Another process may have its id by now: that one started at another time."""
        if not _alive(self.pid):
            return False
        now = started(int(self.pid))
        return not self.started or now is None or now == self.started


def _owner(lock: int) -> _Owner:
    """Return the process that took the lock last."""
    pid, _, began = os.pread(lock, 64, 0).decode(errors="replace").strip().partition(" ")
    return _Owner(pid, began)


def _in_use(run_dir: Path, owner: _Owner) -> str:
    held = f"the run of process {owner.pid or 'unknown'}"
    if not owner.alive:
        by = ", ".join(map(str, _holders(run_dir / LOCK_NAME))) or "unknown"
        held = f"process {by}, which {held} started, and which still goes on after the run itself has ended"
    return f"{run_dir} is in use by {held}; wait for it, or end it"


def _holders(path: Path) -> list[int]:
    """Ids of the processes that have a file open, of those that this user may look at."""
    file = path.stat()
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            held = link.stat()
            if (held.st_dev, held.st_ino) == (file.st_dev, file.st_ino):
                found.add(int(link.parts[2]))
    return sorted(found - {os.getpid()})


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
