"""The servers of one engine: which of them are in service, all of them asked at once, paused together, looked after.

A lost server (it died, hangs, failed, refused what the others took, or says what cannot be right) is taken out of service.
`monitor` waits for it, or, with `restart`, starts it again, has it catch up, and puts it back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from agentrl.engine.client.fleet_state import EngineLimits, LossReport
from agentrl.engine.client.followers import Followers
from agentrl.engine.client.routing import Router
from agentrl.engine.client.server_errors import LocalShortageError, ServerLostError
from agentrl.engine.client.sglang_server import SGLangServer
from agentrl.engine.protocol import PauseMode
from agentrl.errors import EngineError
from agentrl.system.tasks import Condition
from agentrl.system.this_process import streams_within_limits

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 1.0
"""How long aborted replies may take to come back before the server is paused all the same."""
ABORT_POLL_S = 0.005
"""Time between two aborts meanwhile."""

MAX_BAD_IN_A_ROW = 3
"""A server that gives so many bad replies in a row is taken out of service."""
SHORTAGES_LOGGED_EVERY_S = 60.0
MAX_DOUBTS = 3
"""A server that followers cannot reach is believed lost without another look, when so many looks before found it well ..."""
DOUBTS_COUNT_FOR_S = 60.0
"""... within this time."""

Restart = Callable[[str], Awaitable[str]]
"""Start the server at a URL again; returns, when it answers, the URL that it has now."""


class Fleet:
    """One or more servers of the same weights. None is in service before `join`."""

    def __init__(self, servers: Sequence[SGLangServer], limits: EngineLimits, restart: Restart | None) -> None:
        self.servers = list(servers)
        self.followers = Followers()
        self.on_loss: Callable[[SGLangServer, str, bool], None] | None = None
        """Is told which server was marked down, why, and whether it could not be reached."""
        self.ends_replies = False
        """Whether open replies are being ended: paused in mode `abort`."""
        self.router = Router[SGLangServer](limits.balance_threshold)
        self.running = anyio.Event()
        """Set while the servers are not paused."""
        self.running.set()
        self.failures = 0
        """How often a server was taken out of service."""
        self.bad_replies = 0
        """Replies that could not be used, and were asked for again."""
        self.shortages = 0
        """Calls that this machine had no descriptor, port, thread or memory for."""
        self.last_failure = ""
        self.streams = anyio.Semaphore(streams_within_limits(), fast_acquire=True)
        """Room for replies at the same time, so that their connections leave descriptors for everything else."""
        self._shortage_logged_at = -math.inf
        self._limits = limits
        self._restart = restart
        self._in_service = Condition()
        self._clock = 0.0
        self._read_at = time.monotonic()
        self._was_serving = False
        self._doubted_at: dict[SGLangServer, list[float]] = {}

    async def join(self) -> int:
        """Take all servers into service; the version that they serve.

        Raises:
            EngineError: They do not agree.
        """
        versions: dict[str, int] = {}
        for server in self.servers:
            versions[server.url] = await server.probe(self._limits.hang_timeout_s)
            server.begin_service()
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
        """Send a server requests from now on, here and in the processes that follow."""
        server.begin_service()
        self.put_in_service()

    def put_in_service(self) -> None:
        """Wake those who wait for a server, and tell the processes that follow."""
        self.clock()
        self._in_service.notify_all()
        self.followers.announce()

    def open_replies(self, server: SGLangServer) -> int:
        """Return how many replies a server is asked for, here and by the processes that follow."""
        return server.in_flight + self.followers.in_flight(server.address)

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens on every server until `resume`. The processes that follow know it before it begins."""
        if self.running.is_set():
            self.running = anyio.Event()
        self.ends_replies = mode == "abort"
        self.followers.announce()
        await self.followers.acknowledged()
        await self.call_all(lambda server: self._pause(server, mode))

    async def _pause(self, server: SGLangServer, mode: PauseMode) -> None:
        if mode == "abort":
            # SGLang's own abort looks once a second whether all replies have ended. Ended before, they cost no second.
            await self._end_replies(server)
            # The server puts a reply away only after it has sent it.
            await anyio.sleep(4 * ABORT_POLL_S)
        await server.post("/pause_generation", {"mode": mode}, self._limits.hang_timeout_s)

    async def _end_replies(self, server: SGLangServer) -> None:
        """Have a server hand back what its replies have, within a bound."""
        with anyio.move_on_after(ABORT_TIMEOUT_S):
            while self.open_replies(server):
                await server.abort_all(self._limits.hang_timeout_s)
                await anyio.sleep(ABORT_POLL_S)

    async def resume(self) -> None:
        """Produce tokens again."""
        bound = self._limits.hang_timeout_s
        try:
            await self.call_all(lambda server: server.post("/continue_generation", {}, bound))
        finally:
            self.running.set()
            self.ends_replies = False
            self.followers.announce()

    async def health(self) -> None:
        """Return when every server in service answers.

        Raises:
            EngineError: One does not, or none is in service.
        """
        serving = self.in_service()
        if not serving:
            raise EngineError("no server is in service")
        for server in serving:
            await server.get("/health", self._limits.hang_timeout_s)

    def mark_down(self, server: SGLangServer, reason: str, *, unreachable: bool = False) -> None:
        """Send a server nothing more until it is back."""
        if server.serving:
            log.warning("taking %s out of service: %s", server.url, reason)
            server.serving, server.down_at = False, time.monotonic()
            self.clock()
            self.last_failure = reason
            self.failures += 1
            server.drop_requests()
            self.followers.announce()
            if self.on_loss is not None:
                self.on_loss(server, reason, unreachable)

    async def judge(self, loss: LossReport, follower: str) -> None:
        """Take a server that a follower found lost out of service, or, where it is well, let followers use it again."""
        server = next((one for one in self.servers if one.address == loss.url), None)
        if server is None or not server.serving or server.incarnation != loss.incarnation:
            return  # known already
        reason = f"{follower} says: {loss.reason}"
        if loss.unreachable:
            doubted = [at for at in self._doubted_at.get(server, ()) if time.monotonic() - at < DOUBTS_COUNT_FOR_S]
            self._doubted_at[server] = [*doubted, time.monotonic()]
            if len(doubted) < MAX_DOUBTS:
                await self._check(server)
                if server.serving and server.incarnation == loss.incarnation:
                    log.warning("%s answers, it stays in service; %s", server.url, reason)
                    server.incarnation += 1
                    self.put_in_service()
                return
        elif loss.number < self.followers.awaited:  # it judges by what has changed since
            server.incarnation += 1
            self.put_in_service()
            return
        self.mark_down(server, reason)

    def note_bad_reply(self, server: SGLangServer, reason: str) -> None:
        """Count a reply that cannot be used against the server that gave it."""
        log.warning("asking again: %s", reason)
        self.bad_replies += 1
        self.last_failure = reason
        server.bad_in_a_row += 1
        if server.bad_in_a_row >= MAX_BAD_IN_A_ROW:
            self.mark_down(server, f"{server.bad_in_a_row} replies in a row could not be used; the last: {reason}")

    def note_shortage(self, reason: str) -> None:
        """Count a call that failed for want of something on this machine, and say so once a minute."""
        self.shortages += 1
        self.last_failure = reason
        if time.monotonic() - self._shortage_logged_at > SHORTAGES_LOGGED_EVERY_S:
            self._shortage_logged_at = time.monotonic()
            log.warning("waiting: %s", reason)

    async def monitor(self, server: SGLangServer, catch_up: Callable[[SGLangServer], Awaitable[None]]) -> None:
        """See that one server answers, and bring it back when it is lost, until cancelled.

        `catch_up` gives it what the others have, and puts it into service.
        """
        while True:
            if server.serving:
                await anyio.sleep(self._limits.health_interval_s)
                await self._check(server)
            else:
                await self._recover(server, catch_up)

    async def _check(self, server: SGLangServer) -> None:
        running = self.running
        if not running.is_set() or not server.serving:
            return
        try:
            await server.get("/health", self._limits.hang_timeout_s)
        except LocalShortageError as lacking:
            self.note_shortage(str(lacking))
        except EngineError as error:
            # A paused SGLang server fails its own health check, which generates a token.
            if running is self.running and running.is_set() and server.serving:
                self.mark_down(server, str(error))

    async def _recover(self, server: SGLangServer, catch_up: Callable[[SGLangServer], Awaitable[None]]) -> None:
        try:
            if self._restart is not None:
                server.move(await self._restart(server.url))
            await catch_up(server)
        except (EngineError, OSError) as error:  # a server cannot be started on a full disk, or without a descriptor
            log.info("%s is still out of service: %s", server.url, error)
            self.last_failure = str(error)
            await anyio.sleep(min(1.0, self._limits.health_interval_s))
            return
        log.warning("%s is back in service after %.1f s", server.url, time.monotonic() - server.down_at)
