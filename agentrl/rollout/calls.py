"""The table of calls: every reply of the engine, written once.

A reply is kept before it is answered, and becomes a turn of its episode when that has ended:

    reply ─► a row without episode: the call log of an episode that has not ended
                 │ the episode ends, and the reply is in its record
                 ▼
             a row of the episode, which is its turn number `turn`;  what is not in the record is deleted
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from agentrl.rollout.packed_record import SAID, StoredCall
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
    finish TEXT NOT NULL CHECK (finish IN ('stop', 'length')),
    cached_tokens INTEGER NOT NULL,
    top_logprobs BLOB,
    CHECK ((episode IS NULL) = (turn IS NULL))
);
CREATE UNIQUE INDEX logged_once ON calls (group_id, episode_index, request, completion_id, choice_index) WHERE episode IS NULL;
CREATE UNIQUE INDEX turns_of_episodes ON calls (episode, turn) WHERE episode IS NOT NULL;
"""

_CONTENT = "request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions, finish, cached_tokens, top_logprobs"
_LOGGED = "group_id = ? AND episode_index = ? AND episode IS NULL"
_INSERT = f"INSERT INTO calls (group_id, episode_index, {_CONTENT}, episode, turn) VALUES ({', '.join('?' * 14)})"
_LOG = _INSERT.replace("INSERT", "INSERT OR REPLACE", 1)
_SAME = " AND ".join(f"{name} = ?" for name in _CONTENT.split(", ")[:SAID])
_END = f"UPDATE calls SET episode = ?, turn = ?, top_logprobs = NULL WHERE {_LOGGED} AND {_SAME}"
"""The alternatives of a token are asked for until the episode has ended, and not after that."""


def log(db: sqlite3.Connection, kept: Iterable[LoggedCall]) -> None:
    """Write replies of episodes that have not ended. One that is asked anew under the same name takes the place of the earlier."""
    db.executemany(_LOG, [(call.group_id, call.episode_index, *call.call.content, None, None) for call in kept])


def end(db: sqlite3.Connection, group_id: int, episode_index: int, episode: int, turns: Sequence[StoredCall]) -> None:
    """Make the logged replies of an episode that has ended its turns, and delete those that are none.

    Args:
        db: The store, in a transaction.
        group_id: The episode's group.
        episode_index: Its number in the group.
        episode: Its id, which it has by now.
        turns: What is stored: a reply that was logged otherwise, or never, is written now.
    """
    for turn, call in enumerate(turns):
        content = call.content
        if not db.execute(_END, (episode, turn, group_id, episode_index, *content[:SAID])).rowcount:
            db.execute(_INSERT, (group_id, episode_index, *content, episode, turn))
    db.execute(f"DELETE FROM calls WHERE {_LOGGED}", (group_id, episode_index))


def logged(db: sqlite3.Connection, group_id: int, episode_index: int) -> list[tuple[Any, ...]]:
    """Return the contents of the replies of an episode that has not ended, in the order in which they were first logged."""
    query = f"SELECT {_CONTENT} FROM calls WHERE {_LOGGED} ORDER BY rowid"
    return db.execute(query, (group_id, episode_index)).fetchall()


def turns(db: sqlite3.Connection, episode: int) -> list[tuple[Any, ...]]:
    """Return the contents of the turns of an episode, in their order."""
    return db.execute(f"SELECT {_CONTENT} FROM calls WHERE episode = ? ORDER BY turn", (episode,)).fetchall()
