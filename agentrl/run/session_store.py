"""The sessions of a service in its store, where each is a group of one episode.

    open ─► an open group ─► keep ─► its episode, which nothing changes any more ─► state, record
                  │             └──► delete
                  └─ the process was killed ─► the next start: an episode that was lost

The id of a session, ses_GROUP_TOKEN, leads to its group. By the token, which is the group's digest, a client that still has a session of
another directory finds none.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord
from agentrl.store.changes import Change, CloseGroup, DeleteEpisodes, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store

_ID = re.compile(r"ses_(\d{1,18})_[0-9a-f]+")
LISTED = 10_000
"""How many of the sessions that have ended are listed: the newest."""


class SessionStore:
    """The sessions of a service, those of earlier starts included. Its calls block for about a millisecond."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups = itertools.count(store.next_group_id())
        lost = store.read(lambda db: db.execute("SELECT id, task_digest FROM groups WHERE state = 'open'").fetchall())
        why = "the service was killed while the session was open"
        for group, session_id in lost:
            state = {"id": session_id, "status": "lost", "opened_at": None, "calls": 0, "tokens": 0, "reward": None}
            details = json.dumps({"session": state})
            self._end(group, Outcome(reason=EndReason.CANCELLED, error=why, details=details, started_at=time.time()))

    def open(self, version: int) -> str:
        """Return the id of a new session, which begins under this version of the weights."""
        group = next(self._groups)
        session_id = f"ses_{group}_{secrets.token_hex(8)}"
        self._write(OpenGroup(group, 0, group, version, session_id))
        return session_id

    def keep(self, state: Mapping[str, Any], outcome: Outcome, conversations: list[dict[str, Any]]) -> None:
        """Keep a session that has ended.

        Args:
            state: What the service answers about it, its `id` among that.
            outcome: How it ended, with its record.
            conversations: Its conversations.
        """
        details = json.dumps({"session": dict(state), "conversations": conversations})
        self._end(_group(state["id"]), replace(outcome, details=details))

    def _end(self, group: int, outcome: Outcome) -> None:
        self._write(InsertEpisode(group, 0, 0, outcome), CloseGroup(group))

    def _write(self, *changes: Change) -> None:
        self._store.check_in_place()  # a client would be told that it is kept
        self._store.write(changes)

    def delete(self, session_id: str) -> None:
        """Delete what is kept of a session, open or ended."""
        self._write(DeleteEpisodes(_group(session_id)), CloseGroup(_group(session_id), "deleted"))

    def details(self, session_id: str) -> dict[str, Any] | None:
        """Return the `session` and the `conversations` of one that has ended; None: there is none of this id."""
        return next(iter(self._details("WHERE g.id = ? AND g.task_digest = ?", _group(session_id), session_id)), None)

    def states(self) -> list[dict[str, Any]]:
        """Return the states of those that have ended, the oldest first."""
        return [details["session"] for details in self._details("ORDER BY e.id DESC LIMIT ?", LISTED)][::-1]

    def _details(self, where: str, *values: int | str) -> list[dict[str, Any]]:
        query = f"SELECT e.details FROM episodes e JOIN groups g ON g.id = e.group_id {where}"
        return [json.loads(text) for (text,) in self._store.read(lambda db: db.execute(query, values).fetchall())]

    def record(self, session_id: str) -> TokenRecord:
        """Return the record of one that has ended."""
        query = "SELECT id FROM episodes WHERE group_id = ?"
        (number,) = self._store.read(lambda db: db.execute(query, (_group(session_id),)).fetchone())
        return self._store.record(number)


def _group(session_id: str) -> int:
    """Return the group of a session; -1, which none is, for what is no id."""
    found = _ID.fullmatch(session_id)
    return int(found[1]) if found else -1
