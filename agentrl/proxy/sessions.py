"""The sessions of a proxy: found by their keys, bounded in number, closed when nobody uses them."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import anyio

from agentrl.errors import TooManySessionsError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.journal import Journal
from agentrl.proxy.session import SamplingDefaults, Session

REMEMBERED_CLOSED_SESSIONS = 100_000
"""Keys of ended sessions that are still told apart from unknown ones (409 instead of 401)."""


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """What the proxy bears."""

    max_request_bytes: int = 32 * 2**20
    max_sessions: int = 100_000
    session_idle_timeout_s: float | None = None
    """A session that no request came for is closed after this. None: whoever opened it closes it."""
    write_timeout_s: float = 60
    """A client that reads nothing of its reply for so long is given up."""


class Sessions:
    """Open sessions. `on_close` is called with each that ends."""

    def __init__(self, limits: ProxyLimits, on_close: Callable[[Session], None]) -> None:
        self._limits = limits
        self._on_close = on_close
        # By a digest of the key: how long a look-up takes says nothing about any key.
        self._open: dict[bytes, Session] = {}
        self._closed: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def open(self, defaults: SamplingDefaults | None = None, journal: Journal | None = None) -> Session:
        """A session with a key of its own, whose calls are kept in `journal`. Raises TooManySessionsError."""
        if len(self._open) >= self._limits.max_sessions:
            raise TooManySessionsError(
                f"{len(self._open)} sessions are open, as many as proxy.max_sessions allows; close some, or raise it"
            )
        session = Session(defaults or SamplingDefaults(), journal=journal)
        self._open[_digest(session.key)] = session
        return session

    def close(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        session.end()
        self._on_close(session)
        digest = _digest(session.key)
        if self._open.pop(digest, None) is not None:
            self._closed[digest] = None
            if len(self._closed) > REMEMBERED_CLOSED_SESSIONS:
                self._closed.popitem(last=False)

    def find(self, key: str) -> Session:
        """The open session of a key; `KEY.NAME` is the same session as its role NAME. Raises ApiError 401 for an unknown key,
        409 for one that has ended."""
        key, _, name = key.partition(".")
        digest = _digest(key)
        session = self._open.get(digest)
        if session is not None and hmac.compare_digest(session.key.encode(), key.encode()):
            session.last_used = time.monotonic()
            return session.branch(name)
        if digest in self._closed:
            raise ApiError(409, "The episode of this key has ended.", code="episode_closed")
        raise ApiError(401, "Incorrect API key provided: it names no running episode.", code="invalid_api_key")

    async def close_idle(self) -> None:
        """Close sessions that idle for too long; runs until it is cancelled."""
        timeout_s = self._limits.session_idle_timeout_s
        while timeout_s is not None:
            await anyio.sleep(min(timeout_s / 4, 60))
            latest = time.monotonic() - timeout_s
            for session in self:
                if not session.in_use and session.last_used < latest:
                    self.close(session)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
