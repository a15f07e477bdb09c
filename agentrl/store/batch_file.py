"""The episodes of one batch as a file of their own, which is all that a training step needs of a run's store.

    store.sqlite ──rows of some groups──► episodes.sqlite ─► every machine that has a rank of the trainer

The file is a store itself (`agentrl.store.store`) that is read as one. 512 episodes of 4,096 tokens are 29 MB, and take 0.07 s to
write, of which 0.04 s are this process's: rows go from file to file within SQLite, and nothing of them becomes Python.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agentrl.errors import DiskError, StoreError, unwritten
from agentrl.store.database import check_version, reading_uri, reporting
from agentrl.store.schema import SCHEMA, SCHEMA_VERSION
from agentrl.system.files import private

BATCH_FILE = "episodes.sqlite"

_COPY = """
INSERT INTO main.restarts SELECT restart, started_at, '{{}}' FROM run.restarts ORDER BY restart DESC LIMIT 1;
INSERT INTO main.groups SELECT * FROM run.groups WHERE id IN ({ids});
INSERT INTO main.episodes SELECT * FROM run.episodes WHERE reason = 'finished' AND group_id IN ({ids});
INSERT INTO main.calls SELECT * FROM run.calls WHERE episode IN (SELECT id FROM main.episodes);
"""


def write_batch(store: Path, group_ids: Sequence[int], directory: Path) -> Path:
    """Write what a training step reads of the store of a run.

    It waits for no disk, because a batch that a power cut takes can be written again; and it does not wait for the
    run's own connection.

    Args:
        store: The file of the run's store.
        group_ids: The groups of the batch.
        directory: Where the file goes, in place of one that is there; made where it is missing.

    Returns:
        The file, to be opened `read_only`.

    Raises:
        StoreError: The run's store is missing, damaged or of another version, or does not have all these groups.
        DiskError: A file cannot be read or written.
    """
    if not store.is_file():
        raise StoreError(f"{store} is missing, and with it the episodes of groups {list(group_ids)}")
    path = directory / BATCH_FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.close(private(str(path), os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise DiskError(unwritten(str(path), error, directory)) from error
    with reporting(path), closing(sqlite3.connect(path.resolve().as_uri(), uri=True, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        _copy(db, store, group_ids)
    return path


def _copy(db: sqlite3.Connection, store: Path, group_ids: Sequence[int]) -> None:
    """Copy the rows of some groups from a run's store into an empty one.

    Raises:
        StoreError: The run's store is damaged or of another version, or does not have all these groups.
    """
    with reporting(store):
        db.execute("ATTACH ? AS run", (reading_uri(store),))
        check_version(db, store, "run")
        db.executescript(f"BEGIN; {_COPY.format(ids=', '.join(str(int(group)) for group in group_ids))} COMMIT;")
        (found,) = db.execute("SELECT COUNT(*) FROM main.groups").fetchone()
    if found != len(set(group_ids)):
        raise StoreError(f"{store} holds {found} of the groups {list(group_ids)}, which a step is to be trained on")
