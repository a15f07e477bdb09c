"""Which server a request goes to: the one that holds its session's prefix, unless another is much less busy.

A turn of a long conversation costs a server that knows its prefix only the new tokens. So a session stays where it began,
until its server has `balance_threshold` more replies in flight than the least busy one; then it moves, and stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Routable(Protocol):
    """A server, as far as routing needs to know it."""

    in_flight: int


S = TypeVar("S", bound=Routable)


class Router(Generic[S]):
    """The server of each session."""

    def __init__(self, balance_threshold: int) -> None:
        self._balance_threshold = balance_threshold
        self._server_of: dict[str, S] = {}
        self._sessions_on: Counter[int] = Counter()
        self._calls: Counter[str] = Counter()
        """Calls of a session that may still choose."""
        self._ended: set[str] = set()
        """Sessions that ended with calls left."""

    @contextmanager
    def calling(self, session: str) -> Iterator[None]:
        """Hold a session for the length of one call, in which it may choose again and again.

        A session that ended meanwhile is forgotten with its last call.
        """
        self._calls[session] += 1
        try:
            yield
        finally:
            self._calls[session] -= 1
            if not self._calls[session]:
                del self._calls[session]
                if session in self._ended:
                    self._ended.discard(session)
                    self._leave(session)

    def choose(self, session: str, servers: Sequence[S]) -> S:
        """Return the server for the session's next request, of those that serve now (at least one)."""
        # Between requests a session loads no server, but it will: ties go to the server with fewer sessions.
        idlest = min(servers, key=lambda server: (server.in_flight, self._sessions_on[id(server)]))
        last = self._server_of.get(session)
        if last is not None and last in servers and last.in_flight - idlest.in_flight <= self._balance_threshold:
            return last
        self._leave(session)
        self._server_of[session] = idlest
        self._sessions_on[id(idlest)] += 1
        return idlest

    def forget(self, session: str) -> None:
        """Note that the session has ended: no more calls of it begin."""
        if session in self._calls:
            self._ended.add(session)
        self._leave(session)

    def _leave(self, session: str) -> None:
        last = self._server_of.pop(session, None)
        if last is not None:
            self._sessions_on[id(last)] -= 1
