"""The sessions of a proxy: found by their keys, limited in number, closed when idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import anyio

from agentrl.config.proxy import ProxyLimits
from agentrl.errors import EpisodeError, TooManySessionsError
from agentrl.proxy.errors import ApiError
from agentrl.proxy.session import SamplingDefaults, Session, SessionRole
from agentrl.record.recorded_choice import CallLog

REMEMBERED_CLOSED_SESSIONS = 100_000
"""Keys of ended sessions that are still told apart from unknown ones (409 instead of 401)."""


class Sessions:
    """Open sessions. `on_close` is called with each that ends, `adapters` are the roles that have adapters of their own."""

    def __init__(
        self, limits: ProxyLimits, on_close: Callable[[Session], None], adapters: tuple[str, ...] = ()
    ) -> None:
        self._limits = limits
        self._adapters = adapters
        self._on_close = on_close
        self._open: dict[str, Session] = {}
        self._closed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def open(self, defaults: SamplingDefaults | None = None, call_log: CallLog | None = None) -> Session:
        """Return a session with a key of its own, whose calls are kept in `call_log`.

        Raises:
            TooManySessionsError: There are `proxy.max_sessions` already.
        """
        if len(self._open) >= self._limits.max_sessions:
            raise TooManySessionsError(
                f"{len(self._open)} sessions are open, as many as `proxy.max_sessions` allows; close some, or raise it"
            )
        session = Session(
            defaults or SamplingDefaults(),
            call_log=call_log,
            max_roles=self._limits.max_roles,
            adapters=self._adapters,
        )
        self._open[session.key] = session
        return session

    def close(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        session.end()
        self._on_close(session)
        if self._open.pop(session.key, None) is not None:
            self._closed[session.key] = None
            if len(self._closed) > REMEMBERED_CLOSED_SESSIONS:
                del self._closed[next(iter(self._closed))]

    def find(self, key: str) -> SessionRole:
        """Return the open session of a key; `KEY.NAME` is that session as its role NAME.

        Raises:
            ApiError: 401 for an unknown key, 409 for one that has ended, 400 for a role that it cannot have.
        """
        key, _, name = key.partition(".")
        session = self._open.get(key)
        if session is not None:
            session.activity.last_used = time.monotonic()
            try:
                return session.role(name)
            except EpisodeError as error:
                raise ApiError(400, f"The key names a role that cannot be: {error}.", code="invalid_role") from None
        if key in self._closed:
            raise ApiError(409, "The episode of this key has ended.", code="episode_closed")
        message = "Incorrect API key provided: it names no open session; `episode.api_key` does, and with `agentrl serve` the key that POST /sessions returns."
        raise ApiError(401, message, code="invalid_api_key")

    async def close_idle(self) -> None:
        """Close sessions that idle for too long; runs until it is cancelled."""
        timeout_s = self._limits.session_idle_timeout_s
        while timeout_s is not None:
            await anyio.sleep(min(timeout_s / 4, 60))
            latest = time.monotonic() - timeout_s
            for session in self:
                if not session.activity.requests and session.activity.last_used < latest:
                    self.close(session)
