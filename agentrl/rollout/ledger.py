"""The store's ledger: everything that was ever committed, in its order, each entry chained to the one before by its digest.

    digest of entry n = sha256(digest of entry n-1, entry n)

An entry is written in the transaction that it describes, so the tables and the ledger tell the same story, or something other
than the store wrote to one of them. It is evidence against accidents; whoever writes both can write a story of their own.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

SCHEMA = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, entry TEXT NOT NULL, digest BLOB NOT NULL);"

_FileName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z_.]*$")]
_Size = Annotated[int, Field(ge=0)]
_FORMS: dict[str, TypeAdapter[Any]] = {
    kind: TypeAdapter(form)
    for kind, form in {
        "restart": tuple[int, float, str, str],
        "open": tuple[int, int, int, int, str],
        "close": tuple[int, str, str | None],
        "set aside": tuple[int, str, int],
        "episode": tuple[int, str],
        "checkpoint": tuple[int, int, str, float | None, float, list[tuple[int, list[int]]]],
        "reward": tuple[int, float | None, int],
        "forget": tuple[list[int]],
        "damaged": tuple[int, str],
        "writing": tuple[_FileName, _Size, str],
        "file": tuple[_FileName, _Size, str],
    }.items()
}
"""The values of an entry, by its kind."""


def append(db: sqlite3.Connection, kind: str, *values: Any) -> None:
    """Add an entry to the transaction in progress. `values` are those that its kind has in `_FORMS`."""
    entry = json.dumps(values)
    last = db.execute("SELECT digest FROM ledger ORDER BY id DESC LIMIT 1").fetchone()
    digest = _chained(last[0] if last else b"", kind, entry)
    db.execute("INSERT INTO ledger (kind, entry, digest) VALUES (?, ?, ?)", (kind, entry, digest))


def entries(db: sqlite3.Connection, violations: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the entries in their order, as (kind, values), of the types that `append` was given.

    Args:
        db: The store.
        violations: Gets a text where the chain is broken, or an entry is none that the store writes.
    """
    digest, expected = b"", 1
    for number, kind, entry, found in db.execute("SELECT id, kind, entry, digest FROM ledger ORDER BY id"):
        digest = _chained(digest, kind, entry)
        if (number, found) != (expected, digest):
            violations.append(f"entry {number} of the ledger does not follow from those before it")
        digest, expected = found, number + 1
        try:
            yield kind, _FORMS[kind].validate_json(entry, strict=True)
        except (KeyError, ValueError):
            violations.append(f"entry {number} of the ledger cannot be read")


_TYPES = {kind: kind.__name__.encode() for kind in (int, float, str, bytes, type(None))}
"""What SQLite returns."""


def row_digest(row: Sequence[Any]) -> str:
    """Return the digest of a row of a table, as SQLite returns it."""
    parts: list[bytes] = []
    for value in row:
        content = value if isinstance(value, bytes) else repr(value).encode()
        parts += (b"%s %d " % (_TYPES[type(value)], len(content)), content)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def file_digest(path: Path, size: int | None = None) -> tuple[int, str]:
    """Return (bytes, digest) of a file, or of its first `size` bytes."""
    content = path.read_bytes()[:size]
    return len(content), hashlib.sha256(content).hexdigest()


def _chained(before: bytes, kind: str, entry: str) -> bytes:
    return hashlib.sha256(b"%s %s %s" % (before, kind.encode(), entry.encode())).digest()
