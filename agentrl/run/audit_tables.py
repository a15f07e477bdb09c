"""Audit the form of the store: whether it is made as agentrl makes it, and holds what it may hold.

Whatever is read after `check_tables` can rely on it: each value is of its column's type.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from agentrl.errors import StoreError, one_line
from agentrl.rollout.schema import SCHEMA

_TYPES = {"INTEGER": "integer", "REAL": "real", "TEXT": "text", "BLOB": "blob"}
RUN_VALUES = ("tasks", "chain", "calls")
"""The names of all that a store holds of its run as a whole."""


def check_tables(db: sqlite3.Connection) -> None:
    """Check that the tables are those of a store, and each value in them is of its column's type.

    Raises:
        StoreError: They are not.
    """
    for kind, name, fault in _faults(db):
        if kind == "table":
            raise StoreError(f"the store cannot be read: its table {name} is {fault}")
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _, column, declared, needed, _, key in db.execute(f"PRAGMA table_info({table})").fetchall():
            allowed = (_TYPES[declared], _TYPES[declared] if needed or key else "null")
            wrong = f"SELECT rowid, typeof({column}) FROM {table} WHERE typeof({column}) NOT IN (?, ?) LIMIT 1"
            for row, kind in db.execute(wrong, allowed):
                raise StoreError(
                    f"the store cannot be read: row {row} of {table} holds {kind} as its {column}, where {allowed[0]} belongs"
                )


def wrong_objects(db: sqlite3.Connection) -> Iterator[str]:
    """Yield where indices and triggers are not those of a store, and run values that nobody noted."""
    for kind, name, fault in _faults(db):
        yield f"the {kind} {name} of the store is {fault}"
    for (name,) in db.execute("SELECT name FROM run_values"):
        if name not in RUN_VALUES:
            yield f"the store has a run value that nobody noted: {one_line(name, 80)}"


def _faults(db: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    """(kind, name, fault) of all that the store is made of, where it is not what agentrl makes."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(SCHEMA)
        expected = _objects(made)
    found = _objects(db)
    for kind, name in sorted(expected.keys() | found.keys()):
        if (kind, name) not in found:
            yield kind, name, "gone"
        elif (kind, name) not in expected:
            yield kind, name, "not of agentrl"
        elif found[kind, name] != expected[kind, name]:
            yield kind, name, "another than agentrl makes"


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return {(kind, name): f"{table} {sql}" for kind, name, table, sql in rows}
