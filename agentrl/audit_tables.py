"""What the audit says about the form of the store: whether its tables are those that agentrl makes, and hold what they may hold.

Whatever is read after this can rely on it: each value is of its column's type.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from agentrl.errors import StoreError, one_line
from agentrl.rollout.schema import SCHEMA

_TYPES = {"INTEGER": "integer", "REAL": "real", "TEXT": "text", "BLOB": "blob"}
_FACTS = {"tasks", "chain", "calls"}


def wrong_schema(db: sqlite3.Connection) -> Iterator[str]:
    """Where indices and triggers are not those of a store. Raises StoreError when its tables are not."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(SCHEMA)
        expected = _objects(made)
    found = _objects(db)
    for (kind, name), sql in (expected | found).items():
        if found.get((kind, name)) == expected.get((kind, name)):
            continue
        fault = "gone" if (kind, name) not in found else "not of agentrl" if (kind, name) not in expected else "another"
        if kind == "table":
            raise StoreError(f"the store cannot be read: its table {name} is {fault}: {one_line(sql, 80)}")
        yield f"the {kind} {name} of the store is {fault}"


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
    return {(kind, name): f"{table} {sql}" for kind, name, table, sql in rows}


def wrong_values(db: sqlite3.Connection) -> Iterator[str]:
    """Values that are not of their column's type, and facts that nobody noted."""
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        for _, column, declared, needed, _, key in db.execute(f"PRAGMA table_info({table})").fetchall():
            allowed = [_TYPES[declared]] + ([] if needed or key else ["null"])
            wrong = f"SELECT rowid, typeof({column}) FROM {table} WHERE typeof({column}) NOT IN ({_marks(allowed)})"
            for row, kind in db.execute(f"{wrong} ORDER BY rowid", allowed):
                yield f"row {row} of {table} holds {kind} as its {column}, where {_TYPES[declared]} belongs"
    for (name,) in db.execute(f"SELECT name FROM facts WHERE name NOT IN ({_marks(_FACTS)})", sorted(_FACTS)):
        yield f"the store has a fact that nobody noted: {one_line(name, 80)}"


def _marks(values: list[str] | set[str]) -> str:
    return ", ".join("?" * len(values))
