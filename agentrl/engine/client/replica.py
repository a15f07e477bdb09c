"""The engine in a worker process, which calls the servers itself, while the engine's own process says which are in service, with which weights.

    engine's process                                           worker process
    SGLangEngine.state ── FleetState: servers, weights, ─────► ReplicaEngine.take
                          whether replies wait
    take_report        ◄─ ReplicaReport: the state that it ─── ReplicaEngine.report
                          has taken over, its counts
    handle_failure     ◄─ FailureReport: a server that it ──── on_failure
                          cannot use

All that is sent is plain values, which any channel may carry. It is the same client over the same servers, told what its own cannot find
out: that replies wait, that new weights are about to be loaded, that a server has been put into service with them.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import anyio

from agentrl.engine.client.fleet import EngineLimits, Fleet
from agentrl.engine.client.reply import ReplyClient
from agentrl.engine.client.server import ServedModel, ServerAbilities, SGLangServer, open_session
from agentrl.system.this_process import raise_file_limit

ABORT_POLL_S = 0.005
"""Time between two looks whether aborted replies have ended."""
ENDING_TIMEOUT_S = 2.0
"""How long to wait for replies that are being ended, before others are told how many are left."""


@dataclass(frozen=True)
class FleetState:
    """All that a replica needs to know of a fleet. A later one replaces an earlier one whole."""

    number: int
    """It grows with each change."""
    servers: Mapping[str, ServerAbilities]
    """What each server can do, by where it is called, secrets included."""
    serving: Sequence[str]
    """Those of them that take requests; the others are lost for now."""
    running: bool
    """Whether replies may begin. False from before an update begins until its end."""
    ends_replies: bool
    """Whether replies that are open are being ended, so that their end is to be reported: in pause mode `abort`."""
    model: ServedModel
    limits: EngineLimits


@dataclass(frozen=True)
class ReplicaReport:
    """A replica has taken over a state, has no reply open that is being ended, or lets know what it has counted."""

    number: int
    """Of the newest state that it has taken over."""
    in_flight: Mapping[str, int]
    """Its open replies, by the address of the server."""
    tokens: Mapping[str, int]
    """Generated since its last report, by the address of the server."""
    bad_replies: int
    """Since its last report."""
    last_failure: str


@dataclass(frozen=True)
class FailureReport:
    """A replica cannot use a server, and does not until it is sent another state."""

    url: str
    number: int
    """Of the newest state that it had taken over."""
    reason: str
    unreachable: bool
    """Whether a connection failed, which may be the replica's own; else the server answered what it must not."""


class ReplicaEngine(ReplyClient):
    """It is `agentrl.engine.protocol.Engine`, whose weights another process updates. Open it with `replica_engine`."""

    def __init__(
        self, http: aiohttp.ClientSession, state: FleetState, on_failure: Callable[[FailureReport], None]
    ) -> None:
        super().__init__(Fleet([], state.limits, None), ServedModel())
        self._http = http
        self._number = -1
        self.fleet.on_failure = lambda server, reason, unreachable: on_failure(
            FailureReport(server.address, self._number, reason, unreachable)
        )
        self.take(state)

    def take(self, state: FleetState) -> None:
        """Take over what has changed, unless something newer is known. A server that was found lost is used again if it is in service."""
        if state.number <= self._number:
            return
        self._number = state.number
        vars(self._model).update(vars(state.model))
        known = {server.address: server for server in self.fleet.servers}
        for address, abilities in state.servers.items():
            server = known.setdefault(address, SGLangServer(self._http, address, self._model))
            server.abilities = abilities
        for address, server in known.items():
            if address not in state.serving:
                server.serving = False
                server.drop_requests()
            elif not server.serving:
                server.begin_service()
        self.fleet.servers = [known[address] for address in state.servers]
        # Ties go to the first server, which should not be the same in every process.
        random.Random(os.getpid()).shuffle(self.fleet.servers)  # noqa: S311
        if state.running:
            self.fleet.running.set()
        elif self.fleet.running.is_set():
            self.fleet.running = anyio.Event()
        self.fleet.put_in_service()

    def report(self) -> ReplicaReport:
        """Return which state has been taken over, and what was counted since the last report."""
        bad_replies, self.fleet.bad_replies = self.fleet.bad_replies, 0
        in_flight = {server.address: server.in_flight for server in self.fleet.servers if server.in_flight}
        tokens = {server.address: server.take_tokens() for server in self.fleet.servers}
        return ReplicaReport(self._number, in_flight, tokens, bad_replies, self.fleet.last_failure)

    async def until_ended(self) -> None:
        """Wait until no reply is open, within a bound: those that there are, are being ended."""
        with anyio.move_on_after(ENDING_TIMEOUT_S):
            while self.in_flight:  # noqa: ASYNC110  # an event would be set by each reply of each server
                await anyio.sleep(ABORT_POLL_S)


@asynccontextmanager
async def replica_engine(
    state: FleetState, on_failure: Callable[[FailureReport], None]
) -> AsyncIterator[ReplicaEngine]:
    """Open a replica of an engine, for the length of the context.

    Args:
        state: What is known of it now; what changes is given to `ReplicaEngine.take`.
        on_failure: Gets each server that cannot be used, to tell the engine's process.
    """
    raise_file_limit()
    async with open_session() as http:
        yield ReplicaEngine(http, state, on_failure)
