"""The servers of one engine: which of them are in service, which one a request goes to, all of them asked at once, paused together, monitored.

    request ─► Router: the server of its session, unless another is much less busy
    change  ─► announce ─► each replica (a worker process, which calls the servers itself) is sent the newest state, once ─► its report
                                                           what must not begin before waits here ◄── `acknowledged` ◄──┘

A lost server (it died, hangs, failed, refused what the others took, or says what cannot be right) is taken out of service.
`monitor` waits for it, or, with `restart`, starts it again, gives it what the others have, and puts it back.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentrl.engine.client.server import SGLangServer
from agentrl.engine.client.stream import PartialReplyError, ServerLostError, UnreachableError
from agentrl.errors import EngineError
from agentrl.system.tasks import Condition
from agentrl.system.this_process import streams_within_limits

log = logging.getLogger(__name__)

ACKNOWLEDGE_TIMEOUT_S = 2.0
"""How long a change waits for replicas that do not answer."""
MAX_BAD_IN_A_ROW = 3
"""A server that gives so many bad replies in a row is taken out of service."""
RETRY_S = 1.0
"""Time before a server that cannot be used is tried again."""

Restart = Callable[[str], Awaitable[str]]
"""Start the server at a URL again; returns, when it answers, the URL that it has now."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine's waits."""

    request_timeout_s: float = 600
    """One reply, interruptions included."""
    hang_timeout_s: float = 30
    """A server that answers neither a health check nor a pause within this is taken for dead."""
    health_interval_s: float = 5
    """Time between two looks at a server."""
    balance_threshold: int = 8
    """A session leaves its server when that has so many more replies in flight than the least busy one."""


class Router:
    """The server of each session.

    A turn of a long conversation costs a server that knows its prefix only the new tokens. So a session stays where it began,
    until its server has `balance_threshold` more replies in flight than the least busy one; then it moves, and stays there.
    """

    def __init__(self, balance_threshold: int) -> None:
        self._balance_threshold = balance_threshold
        self._server_of: dict[str, SGLangServer] = {}
        self._sessions_on: Counter[int] = Counter()

    def choose(self, session: str, servers: Sequence[SGLangServer]) -> SGLangServer:
        """Return the server for the session's next request, of those that serve now (at least one)."""
        # Between requests a session loads no server, but it will: ties go to the server with fewer sessions.
        idlest = min(servers, key=lambda server: (server.in_flight, self._sessions_on[id(server)]))
        last = self._server_of.get(session)
        if last is not None and last in servers and last.in_flight - idlest.in_flight <= self._balance_threshold:
            return last
        self.forget(session)
        self._server_of[session] = idlest
        self._sessions_on[id(idlest)] += 1
        return idlest

    def forget(self, session: str) -> None:
        """Note that the session has ended."""
        last = self._server_of.pop(session, None)
        if last is not None:
            self._sessions_on[id(last)] -= 1


@dataclass(eq=False)
class FleetReplica:
    """A process that calls the servers too, as the engine's process knows it."""

    name: str
    number: int = 0
    """Of the newest state that it has taken over."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Its open replies, by the address of the server."""


class FleetReplicas:
    """All replicas of one fleet, which are told what they must know before it changes.

    One that does not answer in time, since its event loop is blocked, holds nothing up for long. It knows of no weights that it was
    not told of, so that replies which name them are bad ones to it, and never recorded.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the newest state."""
        self._known: list[FleetReplica] = []
        self._changed = Condition()
        self._reported = Condition()

    @contextmanager
    def joined(self, name: str) -> Iterator[FleetReplica]:
        """Count a process among the replicas for the length of the context. It is to be sent the state of that moment."""
        replica = FleetReplica(name)
        self._known.append(replica)
        try:
            yield replica
        finally:
            self._known.remove(replica)
            self._reported.notify_all()

    def announce(self) -> None:
        """Have the state, which has changed, sent to all."""
        self.number += 1
        self._changed.notify_all()

    async def next_after(self, number: int) -> None:
        """Wait for a newer state than that of a number."""
        await self._changed.wait_for(lambda: self.number > number)

    def took_over(self, replica: FleetReplica, number: int, in_flight: Mapping[str, int]) -> None:
        """Note what a replica has reported."""
        replica.number, replica.in_flight = number, in_flight
        self._reported.notify_all()

    async def acknowledged(self) -> None:
        """Wait until all replicas have taken the newest state over, within a bound."""
        number = self.number
        with anyio.move_on_after(ACKNOWLEDGE_TIMEOUT_S):
            await self._reported.wait_for(lambda: all(one.number >= number for one in self._known))
            return
        late = ", ".join(one.name for one in self._known if one.number < number)
        log.warning("going on without an answer of %s, which did not take over a change in the engine in time", late)

    def in_flight(self, address: str) -> int:
        """Return how many replies replicas have open at a server, as they last reported."""
        return sum(one.in_flight.get(address, 0) for one in self._known)


class Fleet:
    """One or more servers of the same weights. None is in service before `join`."""

    def __init__(self, servers: Sequence[SGLangServer], limits: EngineLimits, restart: Restart | None) -> None:
        self.servers = list(servers)
        self.limits = limits
        self.replicas = FleetReplicas()
        self.on_failure: Callable[[SGLangServer, str, bool], None] = lambda server, reason, unreachable: None
        """Gets each server that is marked down, why, and whether it could not be reached."""
        self.router = Router(limits.balance_threshold)
        self.running = anyio.Event()
        """Set while the servers are not paused."""
        self.running.set()
        self.failures = 0
        """How often a server was taken out of service."""
        self.bad_replies = 0
        """Replies that could not be used, and were asked for again."""
        self.last_failure = ""
        self.streams = anyio.Semaphore(streams_within_limits(), fast_acquire=True)
        """Room for replies at the same time, so that their connections leave descriptors for everything else."""
        self._restart = restart
        self._in_service = Condition()
        self._clock = 0.0
        self._read_at = time.monotonic()
        self._was_serving = False

    async def join(self) -> int:
        """Take all servers into service; the version that they serve.

        Raises:
            EngineError: They do not agree.
        """
        versions: dict[str, int] = {}
        for server in self.servers:
            versions[server.url] = await server.probe(self.limits.hang_timeout_s)
            self.begin_service(server)
        if len(set(versions.values())) != 1:
            raise EngineError(f"the servers serve different weight versions: {versions}")
        return versions[self.servers[0].url]

    def in_service(self) -> list[SGLangServer]:
        """Return the servers that take requests now."""
        return [server for server in self.servers if server.serving]

    def clock(self) -> float:
        """Return seconds that pass while a server is in service, and do not while none is. It is read at each change, too."""
        now = time.monotonic()
        self._clock += (now - self._read_at) * self._was_serving
        self._read_at, self._was_serving = now, bool(self.in_service())
        return self._clock

    async def choose(self, session: str, avoid: Sequence[SGLangServer] = ()) -> SGLangServer:
        """Return the server for a session's next request, another than those to `avoid` where there is one. Waits while none is in service."""
        while not (serving := self.in_service()):
            await self._in_service.wait()
        return self.router.choose(session, [server for server in serving if server not in avoid] or serving)

    async def call_all(
        self, call: Callable[[SGLangServer], Awaitable[Any]], *, mark_down_refusing: bool = False
    ) -> None:
        """Call every server in service, at the same time. A lost one is marked down.

        Args:
            call: The call of one server.
            mark_down_refusing: Whether servers that refuse what others accept are marked down too, so that those in service stay equal.

        Raises:
            EngineError: A server refused, and was not marked down for it.
        """
        refusals: dict[SGLangServer, EngineError] = {}
        agreed = 0

        async def guarded(server: SGLangServer) -> None:
            nonlocal agreed
            try:
                await call(server)
                agreed += 1
            except ServerLostError as lost:
                self.mark_down(server, str(lost))
            except EngineError as error:
                refusals[server] = error

        async with anyio.create_task_group() as group:
            for server in self.in_service():
                group.start_soon(guarded, server)
        if mark_down_refusing and agreed:
            for server, error in refusals.items():
                self.mark_down(server, str(error))
        elif refusals:
            first, *_ = refusals.values()
            raise first

    def begin_service(self, server: SGLangServer) -> None:
        """Send a server requests from now on, here and in the replicas."""
        server.begin_service()
        self.put_in_service()

    def put_in_service(self) -> None:
        """Wake those who wait for a server, and tell the replicas."""
        self.clock()
        self._in_service.notify_all()
        self.replicas.announce()

    def open_replies(self, server: SGLangServer) -> int:
        """Return how many replies a server is asked for, here and by the replicas."""
        return server.in_flight + self.replicas.in_flight(server.address)

    def mark_down(self, server: SGLangServer, reason: str, *, unreachable: bool = False) -> None:
        """Send a server nothing more until it is back."""
        if server.serving:
            log.warning("taken out of service: %s", reason)
            server.serving, server.down_at = False, time.monotonic()
            self.clock()
            self.last_failure = reason
            self.failures += 1
            server.drop_requests()
            self.replicas.announce()
            self.on_failure(server, reason, unreachable)

    def note(self, failure: PartialReplyError, server: SGLangServer) -> None:
        """Hold the failure of a reply against its server."""
        self.last_failure = str(failure)
        if isinstance(failure, ServerLostError):
            self.mark_down(server, self.last_failure, unreachable=isinstance(failure, UnreachableError))
            return
        log.warning("asking again: %s", failure)
        self.bad_replies += 1
        server.bad_in_a_row += 1
        if server.bad_in_a_row >= MAX_BAD_IN_A_ROW:
            self.mark_down(server, f"{MAX_BAD_IN_A_ROW} replies in a row could not be used; the last: {failure}")

    async def monitor(self, server: SGLangServer, sync_weights: Callable[[SGLangServer], Awaitable[None]]) -> None:
        """See that one server answers, and bring it back when it is lost, until cancelled.

        `sync_weights` gives it what the others have, and puts it into service.
        """
        while True:
            if server.serving:
                await anyio.sleep(self.limits.health_interval_s)
                await self.check(server)
            else:
                await self._recover(server, sync_weights)

    async def check(self, server: SGLangServer) -> None:
        """Mark a server down that does not answer; not while the servers are paused."""
        running = self.running
        if not running.is_set() or not server.serving:
            return
        try:
            await server.get("/health", self.limits.hang_timeout_s)
        except EngineError as error:
            # A paused SGLang server fails its own health check, which generates a token.
            if running is self.running and running.is_set() and server.serving:
                self.mark_down(server, str(error))

    async def _recover(self, server: SGLangServer, sync_weights: Callable[[SGLangServer], Awaitable[None]]) -> None:
        try:
            if self._restart is not None:
                server.move(await self._restart(server.url))
            await sync_weights(server)
        except (EngineError, OSError) as error:  # a server cannot be started on a full disk, or without a descriptor
            log.info("%s is still out of service: %s", server.url, error)
            self.last_failure = str(error)
            await anyio.sleep(min(RETRY_S, self.limits.health_interval_s))
            return
        log.warning("%s is back in service after %.1f s", server.url, time.monotonic() - server.down_at)
