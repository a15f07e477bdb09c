"""The table of calls: every reply of the engine, written once.

    reply ─► a row without episode: the call log of an episode that has not ended
                 │ the episode ends, and the reply is in its record
                 ▼
             a row of the episode, which is its turn number `turn`;  what is not in the record is deleted

Each row has the digest of its content. The rows of an episode are covered by its entry in the ledger, which goes over their digests.
Those without come and go too fast for an entry each: one run value covers them all, and is written in the transaction that changes
them, their digests XORed. A row that is gone, added or changed by anything else shows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentrl.rollout.ledger import row_digest
from agentrl.rollout.packed_record import StoredCall
from agentrl.rollout.stored_episodes import LoggedCall

SCHEMA = """
CREATE TABLE calls (
    group_id INTEGER NOT NULL REFERENCES groups (id),
    episode_index INTEGER NOT NULL,
    episode INTEGER REFERENCES episodes (id),
    turn INTEGER,
    request TEXT NOT NULL,
    completion_id TEXT NOT NULL,
    choice_index INTEGER NOT NULL,
    tool_call_ids TEXT NOT NULL,
    output_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    versions BLOB NOT NULL,
    finish TEXT NOT NULL,
    cached_tokens INTEGER NOT NULL,
    top_logprobs BLOB,
    digest BLOB NOT NULL,
    CHECK ((episode IS NULL) = (turn IS NULL))
);
CREATE UNIQUE INDEX logged_once ON calls (group_id, episode_index, request, completion_id, choice_index) WHERE episode IS NULL;
CREATE UNIQUE INDEX turns_of_episodes ON calls (episode, turn) WHERE episode IS NOT NULL;
"""

_KEY = "group_id, episode_index, request, completion_id, choice_index"
_CONTENT = "request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions, finish, cached_tokens, top_logprobs"
_LOGGED = "group_id = ? AND episode_index = ? AND episode IS NULL"
_INSERT = (
    f"INSERT INTO calls (group_id, episode_index, {_CONTENT}, digest, episode, turn) VALUES ({', '.join('?' * 15)})"
)
_CHANGING = "tool_call_ids, output_ids, logprobs, versions, finish, cached_tokens, top_logprobs, digest"
_REPLACE = ", ".join(f"{name} = excluded.{name}" for name in _CHANGING.split(", "))
_NAMES = "request, completion_id, choice_index"
_DIGEST = f"SELECT digest FROM calls WHERE {_LOGGED} AND request = ? AND completion_id = ? AND choice_index = ?"
_SAME = "tool_call_ids = ? AND output_ids = ? AND logprobs = ? AND versions = ? AND finish = ?"


def log(db: sqlite3.Connection, kept: Iterable[LoggedCall]) -> None:
    """Write replies of episodes that have not ended, each in place of its earlier state."""
    changed = 0
    for call in kept:
        logged, content = (call.group_id, call.episode_index), call.call.content
        digest = call.call.digest(*logged)
        changed ^= _number(digest)
        row = (*logged, *content, digest, None, None)
        if not db.execute(f"{_INSERT} ON CONFLICT ({_KEY}) WHERE episode IS NULL DO NOTHING", row).rowcount:
            known = db.execute(_DIGEST, (*logged, *content[:3])).fetchone()
            changed ^= _number(known[0])
            db.execute(f"{_INSERT} ON CONFLICT ({_KEY}) WHERE episode IS NULL DO UPDATE SET {_REPLACE}", row)
    _note(db, changed)


def end(db: sqlite3.Connection, group_id: int, episode_index: int, episode: int, turns: Sequence[StoredCall]) -> None:
    """Make the logged replies of an episode that has ended its turns, and delete those that are none.

    Args:
        db: The store, in a transaction.
        group_id: The episode's group.
        episode_index: Its number in the group.
        episode: Its id, which it has by now.
        turns: What is stored: a reply that was logged otherwise, or never, is written now.
    """
    of = (group_id, episode_index)
    logged: dict[Any, tuple[int, Any]] = {}
    changed = 0
    for row, digest, *key in db.execute(f"SELECT rowid, digest, {_NAMES} FROM calls WHERE {_LOGGED}", of):
        logged[tuple(key)] = row, digest
        changed ^= _number(digest)
    moved, new = [], []
    for turn, call in enumerate(turns):
        content = call.content
        known, digest = logged.pop(content[:3], (None, None))
        if known is not None and digest != call.digest(*of):  # what was said may be the same
            found = db.execute(
                f"SELECT cached_tokens, top_logprobs FROM calls WHERE rowid = ? AND {_SAME}", (known, *content[3:8])
            ).fetchone()
            if found is None:
                logged[content[:3]] = known, digest
                known = None
            else:
                content = (*content[:8], *found)
        if known is None:
            new.append((*of, *content, call.digest(*of), episode, turn))
        elif content[9] is None:
            moved.append((episode, turn, known))
        else:  # nobody asks for them any more
            content = (*content[:9], None)
            query = "UPDATE calls SET episode = ?, turn = ?, top_logprobs = NULL, digest = ? WHERE rowid = ?"
            db.execute(query, (episode, turn, _digest(*of, content), known))
    db.executemany("UPDATE calls SET episode = ?, turn = ? WHERE rowid = ?", moved)
    db.executemany(_INSERT, new)
    if logged:
        db.execute(f"DELETE FROM calls WHERE {_LOGGED}", of)
    _note(db, changed)


def logged(db: sqlite3.Connection, group_id: int, episode_index: int) -> list[tuple[Any, ...]]:
    """Return the contents of the replies of an episode that has not ended, in the order in which they were first logged."""
    query = f"SELECT {_CONTENT} FROM calls WHERE {_LOGGED} ORDER BY rowid"
    return db.execute(query, (group_id, episode_index)).fetchall()


def turns(db: sqlite3.Connection, episode: int) -> list[tuple[Any, ...]]:
    """Return the contents of the turns of an episode, in their order."""
    return db.execute(f"SELECT {_CONTENT} FROM calls WHERE episode = ? ORDER BY turn", (episode,)).fetchall()


def episode_digest(db: sqlite3.Connection, row: Sequence[Any]) -> str:
    """Return the digest of an episode, of which `row` is all that the table of episodes holds: the row, and its turns."""
    found = db.execute("SELECT turn, digest FROM calls WHERE episode = ? ORDER BY turn", (row[0],))
    return row_digest([*row, *(value for turn in found for value in turn)])


def wrong_calls(db: sqlite3.Connection) -> Iterator[str]:
    """Yield where the rows are not those that were written. Of a whole episode's, this is the content; which ones it has says its digest."""
    total = 0
    query = f"SELECT episode, turn, digest, group_id, episode_index, {_CONTENT} FROM calls"
    for episode, turn, digest, group_id, episode_index, *content in db.execute(query):
        if episode is None:
            total ^= _number(digest)
        if (episode is None) != (turn is None):
            yield f"a call of episode {episode_index} of group {group_id} is a turn of no episode, or no turn of one"
        if _digest(group_id, episode_index, content) != digest:
            yield f"a call of episode {episode_index} of group {group_id} is not what was kept: its digest is another"
    if _text(total) != _noted(db):
        yield "the calls of episodes that have not ended are not those that were kept: some are gone, or were added"


def _digest(group_id: int, episode_index: int, content: Sequence[Any]) -> bytes:
    return bytes.fromhex(row_digest([group_id, episode_index, *content]))


def _note(db: sqlite3.Connection, changed: int) -> None:
    if not changed:
        return
    try:
        value = _text(int(_noted(db), 16) ^ changed)
    except ValueError:  # damaged, which the audit says; the run goes on
        return
    db.execute("INSERT INTO run_values VALUES ('calls', ?) ON CONFLICT DO UPDATE SET value = excluded.value", (value,))


def _noted(db: sqlite3.Connection) -> str:
    row = db.execute("SELECT value FROM run_values WHERE name = 'calls'").fetchone()
    return str(row[0]) if row else _text(0)


def _number(digest: Any) -> int:
    return int.from_bytes(digest, "big") if isinstance(digest, bytes) else 0  # damaged, which the audit says


def _text(number: int) -> str:
    return f"{number:064x}"
