"""The table of calls: replies of episodes that have not ended, kept as they happen.

They come and go too fast for an entry of the ledger each. One fact covers them all, and is written in the transaction that
changes them: the digests of all rows, XORed. A row that is gone, added or changed by anything else shows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from agentrl.rollout.ledger import row_digest

SCHEMA = """
CREATE TABLE calls (
    group_id INTEGER NOT NULL REFERENCES groups (id),
    episode_index INTEGER NOT NULL,
    request TEXT NOT NULL,
    completion_id TEXT NOT NULL,
    choice_index INTEGER NOT NULL,
    content BLOB NOT NULL,
    digest BLOB NOT NULL,
    UNIQUE (group_id, episode_index, request, completion_id, choice_index)
);
"""

CallRow = tuple[int, int, str, str, int, bytes]
"""A row without its digest."""


def keep(db: sqlite3.Connection, rows: Iterable[CallRow]) -> None:
    """Write replies, each in place of its earlier state."""
    changed = 0
    for row in rows:
        known = db.execute(
            "SELECT digest FROM calls WHERE group_id = ? AND episode_index = ? AND request = ? AND completion_id = ? AND choice_index = ?",
            row[:5],
        ).fetchone()
        digest = bytes.fromhex(row_digest(row))
        changed ^= _number(digest) ^ (_number(known[0]) if known else 0)
        db.execute(
            "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET content = excluded.content, digest = excluded.digest",
            (*row, digest),
        )
    _note(db, changed)


def forget(db: sqlite3.Connection, group_id: int, episode_index: int) -> None:
    """Delete the replies of an episode, which is stored whole now."""
    changed = 0
    for (digest,) in db.execute(
        "SELECT digest FROM calls WHERE group_id = ? AND episode_index = ?", (group_id, episode_index)
    ):
        changed ^= _number(digest)
    db.execute("DELETE FROM calls WHERE group_id = ? AND episode_index = ?", (group_id, episode_index))
    _note(db, changed)


def kept(db: sqlite3.Connection, group_id: int, episode_index: int) -> list[tuple[Any, ...]]:
    """(request, completion id, choice index, content) of the replies of an episode, in the order in which they were first kept."""
    return db.execute(
        "SELECT request, completion_id, choice_index, content FROM calls WHERE group_id = ? AND episode_index = ? ORDER BY rowid",
        (group_id, episode_index),
    ).fetchall()


def wrong_calls(db: sqlite3.Connection) -> Iterator[str]:
    """Where the replies are not those that were kept."""
    total = 0
    for *call, digest in db.execute(
        "SELECT group_id, episode_index, request, completion_id, choice_index, content, digest FROM calls"
    ):
        total ^= _number(digest)
        if row_digest(call) != digest.hex():
            yield f"a call of episode {call[1]} of group {call[0]} is not what was kept: its digest is another"
    if _text(total) != _noted(db):
        yield "the calls of episodes that have not ended are not those that were kept: some are gone, or were added"


def _note(db: sqlite3.Connection, changed: int) -> None:
    if not changed:
        return
    try:
        value = _text(int(_noted(db), 16) ^ changed)
    except ValueError:  # damaged, which the audit says; the run goes on
        return
    db.execute("INSERT INTO facts VALUES ('calls', ?) ON CONFLICT DO UPDATE SET value = excluded.value", (value,))


def _noted(db: sqlite3.Connection) -> str:
    row = db.execute("SELECT value FROM facts WHERE name = 'calls'").fetchone()
    return str(row[0]) if row else _text(0)


def _number(digest: Any) -> int:
    return int.from_bytes(digest, "big") if isinstance(digest, bytes) else 0  # damaged, which the audit says


def _text(number: int) -> str:
    return f"{number:064x}"
