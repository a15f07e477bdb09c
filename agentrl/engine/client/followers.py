"""The processes that follow an engine: they call its servers themselves, and are told what they must know before it changes.

    change ─► announce ─► each follower is sent the newest state, once, however many changes came meanwhile ─► its report
                                                                        what must not begin before waits here ◄─┘ `acknowledged`

A follower that does not answer in time, since its event loop is blocked, holds nothing up for long. It knows of no weights that it was not
told of, so that replies which name them are bad ones to it, and never recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from agentrl.system.tasks import Condition

log = logging.getLogger(__name__)

ACKNOWLEDGE_TIMEOUT_S = 2.0
"""How long a change waits for followers that do not answer."""


@dataclass(eq=False)
class Follower:
    """One process that follows, as the engine's process knows it."""

    name: str
    number: int = 0
    """Of the newest state that it has taken over."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Its open replies, by the URL of the server."""


class Followers:
    """All that follow one fleet."""

    def __init__(self) -> None:
        self.number = 0
        """Of the newest state."""
        self.awaited = 0
        """Of the newest state that something waited for all followers to take over."""
        self._known: list[Follower] = []
        self._changed = Condition()
        self._reported = Condition()

    @contextmanager
    def following(self, name: str) -> Iterator[Follower]:
        """Count a process among the followers for the length of the context. It is to be sent the state of that moment."""
        follower = Follower(name)
        self._known.append(follower)
        try:
            yield follower
        finally:
            self._known.remove(follower)
            self._reported.notify_all()

    def announce(self) -> None:
        """Have the state, which has changed, sent to all."""
        self.number += 1
        self._changed.notify_all()

    async def next_after(self, number: int) -> None:
        """Wait for a newer state than that of a number."""
        await self._changed.wait_for(lambda: self.number > number)

    def took_over(self, follower: Follower, number: int, in_flight: Mapping[str, int]) -> None:
        """Note what a follower has reported."""
        follower.number, follower.in_flight = number, in_flight
        self._reported.notify_all()

    async def acknowledged(self) -> None:
        """Wait until all followers have taken the newest state over, within a bound."""
        number = self.awaited = self.number
        with anyio.move_on_after(ACKNOWLEDGE_TIMEOUT_S):
            await self._reported.wait_for(lambda: all(one.number >= number for one in self._known))
            return
        late = ", ".join(one.name for one in self._known if one.number < number)
        log.warning("going on without an answer of %s, which did not take over a change in the engine in time", late)

    def in_flight(self, url: str) -> int:
        """Return how many replies followers have open at a server, as they last reported."""
        return sum(one.in_flight.get(url, 0) for one in self._known)
