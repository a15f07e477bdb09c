"""Which server a request goes to: the one that holds its session's prefix, unless another is much less busy.

A turn of a long conversation costs a server that knows its prefix only the new tokens. So a session stays where it began,
until its server has `spill` more replies in flight than the least busy one; then it moves, and stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Routable(Protocol):
    """What routing needs to know of a server."""

    in_flight: int


S = TypeVar("S", bound=Routable)


class Router(Generic[S]):
    """The server of each session."""

    def __init__(self, spill: int) -> None:
        self._spill = spill
        self._home: dict[str, S] = {}
        self._residents: Counter[int] = Counter()

    def choose(self, session: str, servers: Sequence[S]) -> S:
        """The server for the session's next request, of those that serve now (at least one)."""
        # Between requests a session loads no server, but it will: ties go to the server with fewer sessions.
        idlest = min(servers, key=lambda server: (server.in_flight, self._residents[id(server)]))
        home = self._home.get(session)
        if home is not None and home in servers and home.in_flight - idlest.in_flight <= self._spill:
            return home
        self.forget(session)
        self._home[session] = idlest
        self._residents[id(idlest)] += 1
        return idlest

    def forget(self, session: str) -> None:
        """The session has ended."""
        home = self._home.pop(session, None)
        if home is not None:
            self._residents[id(home)] -= 1
