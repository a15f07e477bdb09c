"""A broadcast that fails anywhere: the weights are read from disk, and the next update is broadcast again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.engine.broadcast import Broadcast
from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.errors import TrainerError, TrainerLostError
from tests.engine.scripted_server import ScriptedServer, scripted_server, sound_states

pytestmark = pytest.mark.anyio
MANIFEST: dict[str, Any] = {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]]}
SENT, FORMED = "/update_weights_from_distributed", "/init_weights_update_group"


class Sender:
    """A trainer that fails once at what `fails` names."""

    fails = ""
    error: Exception = TrainerError("out of memory")

    async def join_weight_group(self, *where: Any) -> None:
        self._perhaps("join")

    async def weight_buckets(self) -> list[dict[str, Any]]:
        self._perhaps("buckets")
        return [MANIFEST, MANIFEST]

    async def send_bucket(self, index: int) -> None:
        self._perhaps("send")

    def _perhaps(self, what: str) -> None:
        if what == self.fails:
            self.fails = ""
            raise self.error


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[SGLangEngine, list[ScriptedServer], Sender, Broadcast]]:
    async with (
        scripted_server(lambda _: [*sound_states(1)]) as one,
        scripted_server(lambda _: [*sound_states(1)]) as two,
        sglang_engine([one.url, two.url]) as engine,
    ):
        sender = Sender()
        yield engine, [one, two], sender, Broadcast(engine, sender, "gloo")


async def check_next_is_broadcast(engine: SGLangEngine, servers: list[ScriptedServer], broadcast: Broadcast) -> None:
    failures = broadcast.failures
    for server in servers:
        server.told.clear()
    await broadcast.update_weights(Path("/v3"), 3)
    assert (engine.version, broadcast.failures) == (3, failures)
    assert [server.told.count(SENT) for server in servers] == [2, 2]


@pytest.mark.parametrize("error", [TrainerError("out of memory"), TrainerLostError("it ended"), OSError(24, "no port")])
@pytest.mark.parametrize("what", ["join", "buckets", "send"])
async def test_a_trainer_that_fails_costs_one_broadcast(what: str, error: Exception) -> None:
    async with opened() as (engine, servers, sender, broadcast):
        sender.fails, sender.error = what, error
        await broadcast.update_weights(Path("/v2"), 2)
        assert (engine.version, broadcast.failures) == (2, 1)
        assert [server.version for server in servers] == [2, 2], "they read it from disk"
        await check_next_is_broadcast(engine, servers, broadcast)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("path", [FORMED, "/begin_weight_update", SENT, "/end_weight_update"])
async def test_a_server_that_fails_costs_one_broadcast(path: str, dies: bool) -> None:
    async with opened() as (engine, servers, _, broadcast):
        faults = [path]

        def control(asked: str) -> web.Response:
            if asked not in faults:
                return web.json_response({"success": True})
            faults.remove(asked)
            if dies:
                return web.Response(body=b"no JSON at all")
            return web.json_response({"success": False, "message": "no"}, status=400)

        servers[1].control = control
        await broadcast.update_weights(Path("/v2"), 2)
        assert (engine.version, broadcast.failures) == (2, 1)
        assert servers[1].version == 2, "it read it from disk"
        assert not faults
        await check_next_is_broadcast(engine, servers, broadcast)
