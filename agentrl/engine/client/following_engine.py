"""The engine as a process has it that calls the servers itself, while another one says which of them are in service, with which weights.

It is the same client over the same servers, told by `FleetState` what its own cannot find out: that replies wait, that new weights are
about to be loaded, that a server has been put into service with them.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio

from agentrl.engine.client.adapters import Adapter, Adapters
from agentrl.engine.client.fleet import Fleet
from agentrl.engine.client.fleet_state import FleetState, FollowerReport, LossReport
from agentrl.engine.client.reply_client import ReplyClient
from agentrl.engine.client.sglang_server import ServedModel, SGLangServer, open_session
from agentrl.engine.protocol import PauseMode
from agentrl.errors import EngineError
from agentrl.system.this_process import raise_file_limit

ENDING_TIMEOUT_S = 2.0
"""How long to wait for replies that are being ended, before others are told how many are left."""


class FollowingEngine(ReplyClient):
    """It is `agentrl.engine.protocol.Engine`, whose weights another process updates. Open it with `following_engine`."""

    def __init__(self, http: aiohttp.ClientSession, state: FleetState, on_loss: Callable[[LossReport], None]) -> None:
        super().__init__(Fleet([], state.limits, None), ServedModel(), state.version, state.limits)
        self._http = http
        self._on_loss = on_loss
        self._salt = os.urandom(8)
        self._reported = Counter[str]()
        self._number = -1
        self._ends_replies = False
        self.fleet.on_loss = self._lose
        self.take(state)

    def take(self, state: FleetState) -> None:
        """Take over what has changed, unless something newer is known."""
        if state.number <= self._number:
            return
        self._number, self._version, self._ends_replies = state.number, state.version, state.ends_replies
        model = self._model
        model.version, model.newest_version, model.updates = state.model_version, state.newest_version, state.updates
        model.keeps_cache, model.vocabulary = state.keeps_cache, state.vocabulary
        self._adapters = Adapters({role: Adapter(name, version) for role, (name, version) in state.adapters.items()})
        self._take_servers(state)
        if not state.running and self.fleet.running.is_set():
            self.fleet.running = anyio.Event()
        elif state.running:
            self.fleet.running.set()
        self.fleet.put_in_service()

    def _take_servers(self, state: FleetState) -> None:
        known = {server.address: server for server in self.fleet.servers}
        servers = []
        for one in state.servers:
            server = known.pop(one.url, None) or SGLangServer(self._http, one.url, self._model)
            server.abilities = one.abilities
            if one.incarnation > server.incarnation:
                server.begin_service()
                server.incarnation = one.incarnation
            server.serving = server.serving and one.serving
            if not one.serving:
                server.drop_requests()
            servers.append(server)
        for server in known.values():
            server.serving = False
            server.drop_requests()
        # Ties go to the first server, which should not be the same in every process.
        servers.sort(key=lambda server: hashlib.blake2b(server.address.encode(), key=self._salt).digest())
        self.fleet.servers = servers

    def _lose(self, server: SGLangServer, reason: str, unreachable: bool) -> None:
        self._on_loss(LossReport(server.address, server.incarnation, self._number, reason, unreachable))

    def report(self) -> FollowerReport:
        """Return which state has been taken over, and what was counted since the last report."""
        counted = Counter(bad_replies=self.fleet.bad_replies, shortages=self.fleet.shortages)
        new, self._reported = counted - self._reported, counted
        in_flight = {server.address: server.in_flight for server in self.fleet.servers if server.in_flight}
        tokens = {server.address: server.take_tokens() for server in self.fleet.servers}
        counts = new["bad_replies"], new["shortages"]
        return FollowerReport(self._number, in_flight, tokens, *counts, self.fleet.last_failure)

    @property
    def ending(self) -> bool:
        """Whether replies are open that are being ended."""
        return self._ends_replies and any(server.in_flight for server in self.fleet.servers)

    async def until_ended(self) -> None:
        """Wait until no reply is open that is being ended, within a bound."""
        with anyio.move_on_after(ENDING_TIMEOUT_S):
            await self._model.reply_ended.wait_for(lambda: not self.ending)

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Refuse: the engine that is followed updates the weights.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process updates the weights")

    async def pause(self, mode: PauseMode) -> None:
        """Refuse, in the same way.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process pauses the engine")

    async def resume(self) -> None:
        """Refuse, in the same way.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process resumes the engine")


@asynccontextmanager
async def following_engine(state: FleetState, on_loss: Callable[[LossReport], None]) -> AsyncIterator[FollowingEngine]:
    """Open an engine that follows another, for the length of the context.

    Args:
        state: What is known of it now; what changes is given to `FollowingEngine.take`.
        on_loss: Gets each server that is found lost, to tell the engine that is followed.
    """
    raise_file_limit()
    async with open_session() as http:
        yield FollowingEngine(http, state, on_loss)
