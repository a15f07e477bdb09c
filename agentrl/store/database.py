"""The SQLite file of a store: made whole or not at all, never made where one was lost, and durable where it must be.

An ordinary transaction is in the write-ahead log when it returns: no process that dies can lose it, a power cut can, with those
after it. A durable one is on the disk, with all before it, and is moved from the log into the database file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from agentrl.errors import DiskError, StoreError, one_line, unwritten
from agentrl.store.schema import SCHEMA, SCHEMA_VERSION
from agentrl.system.files import partial_path, private, put_in_place

READERS_TIMEOUT_MS = 200
"""How long a durable transaction waits for readers, which keep it from emptying the log. It is durable in the log anyway."""
BUSY_TIMEOUT_MS = 5000
RESTORE = (
    "Nothing was deleted. Put back the store.sqlite that belongs to the run, with its store.sqlite-wal where there is one, "
    "or start a new run in another directory"
)


def create_database(path: Path) -> None:
    """Make an empty store that a power cut cannot take away again.

    Raises:
        StoreError: The log of a store that is gone lies beside it.
        DiskError: It cannot be written.
    """
    log = path.with_name(path.name + "-wal")
    if log.exists():  # SQLite would read it into the new file
        raise StoreError(f"{log} is left of a store that is gone. {RESTORE}.")
    partial = partial_path(path)
    try:
        for suffix in ("", "-wal", "-shm"):
            partial.with_name(partial.name + suffix).unlink(missing_ok=True)
        os.close(private(str(partial), os.O_RDWR | os.O_CREAT))  # SQLite gives the files beside it the same mode
        with closing(sqlite3.connect(partial, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # closing would do it too, and say nothing of a full disk
        put_in_place(path)
    except (sqlite3.OperationalError, OSError) as error:
        raise DiskError(f"{path} cannot be made: {one_line(error)}; make room, and start again") from error


def open_database(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a store that is there.

    Args:
        path: The store's file.
        read_only: Leave no file behind either: without a log, which a run has as long as it goes on, the store is opened as a file
            that does not change.

    Returns:
        The connection, which commits by itself but within BEGIN and COMMIT.

    Raises:
        StoreError: The file is missing, empty, damaged or of another version.
        DiskError: It cannot be opened.
    """
    if not path.is_file():
        raise StoreError(f"{path} is missing. {RESTORE}.")
    try:
        uri = reading_uri(path) if read_only else f"{path.resolve().as_uri()}?mode=rw"
        db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise DiskError(unwritten(str(path), error, path.parent)) from error
    try:
        check_version(db, path)
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def reading_uri(path: Path) -> str:
    """Return the URI under which SQLite reads a store and leaves no file beside it."""
    unchanging = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{unchanging}"


def check_version(db: sqlite3.Connection, path: Path, schema: str = "main") -> None:
    """Check that this is a store of this version of the schema. `schema`: what the connection calls the file at `path`.

    Raises:
        StoreError: It is not.
    """
    with reporting(path):
        (found,) = db.execute(f"PRAGMA {schema}.user_version").fetchone()
        if found == 0:
            raise StoreError(f"{path} is empty: what was in it is lost. {RESTORE}.")
        if found != SCHEMA_VERSION:
            raise StoreError(
                f"{path} has schema {found}; this agentrl reads {SCHEMA_VERSION}. Use a new run directory."
            )


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Read the whole store.

    Raises:
        StoreError: It is damaged.
    """
    with reporting(path):
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreError(_unusable(path, verdict.replace("\n", " ")))


@contextmanager
def reading(what: str, run_dir: Path) -> Iterator[None]:
    """Name what is read of a run within the context, where the store's content is not what it should be.

    Args:
        what: What is read.
        run_dir: The run's directory.

    Raises:
        StoreError: It cannot be read.
    """
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise StoreError(
            f"{what} cannot be read from {run_dir / 'store.sqlite'}: {one_line(error)}; agentrl audit {run_dir} tells what else is "
            "damaged"
        ) from error


@contextmanager
def transaction(db: sqlite3.Connection, path: Path, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a transaction: all of it, or nothing.

    Args:
        db: The store.
        path: Its file, for messages.
        durable: Whether it is there after a power cut too.

    Raises:
        DiskError: The disk does not take it.
        StoreError: The file is damaged.
    """
    with reporting(path):
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        with db:
            db.execute("BEGIN IMMEDIATE")
            yield db
        if durable:
            _empty_log(db)


def files_at(path: Path) -> list[int | None]:
    """Return which files a store's path and its log's stand for, as inodes; None for none."""
    return [file.stat().st_ino if file.exists() else None for file in (path, path.with_name(path.name + "-wal"))]


def _empty_log(db: sqlite3.Connection) -> None:
    """Move what the log holds into the database file."""
    db.execute(f"PRAGMA busy_timeout = {READERS_TIMEOUT_MS}")
    try:
        with suppress(sqlite3.OperationalError):  # what is committed is durable without
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Say what an error of SQLite within the context means to a user.

    Raises:
        DiskError: The file cannot be read or written.
        StoreError: The file is damaged.
        IntegrityError: A row breaks a rule of its table, which is for the caller to answer.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DiskError(unwritten(str(path), error, path.parent)) from error
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        raise StoreError(_unusable(path, error)) from error


def _unusable(path: Path, why: object) -> str:
    return f"{path} cannot be used as a store: {why}. {RESTORE}."
