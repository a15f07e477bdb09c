"""Servers in service serve the same weights, whoever leaves an update in the middle or starts a server again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from pydantic import ValidationError
from safetensors.torch import save_file

from agentrl.engine.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentrl.engine.client import EngineLimits, sglang_engine
from agentrl.engine.client.stream import VERSION_DIGITS
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.run.serve import WeightsBody
from tests.engine.scripted_server import Answer, Json, ScriptedServer, scripted_server, sound_states

pytestmark = pytest.mark.anyio
LIMITS = EngineLimits(health_interval_s=0.05)
FOUR = Sampling(max_new_tokens=4)


class Waits(ScriptedServer):
    """It says that it loads weights, and has loaded them when it may."""

    def __init__(self, answer: Callable[[Json], Answer]) -> None:
        super().__init__(answer)
        self.begun, self.may_end = anyio.Event(), anyio.Event()

    async def update(self, http: web.Request) -> web.Response:
        self.begun.set()
        await self.may_end.wait()
        return await super().update(http)


async def test_an_update_that_its_caller_leaves_while_a_server_loads_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with scripted_server(lambda body: []) as one:
        monkeypatch.setattr("tests.engine.scripted_server.ScriptedServer", Waits)
        async with scripted_server(lambda body: []) as two, sglang_engine([one.url, two.url], limits=LIMITS) as engine:
            assert isinstance(two, Waits)
            left = anyio.CancelScope()

            async def update() -> None:
                with left:
                    await engine.update_weights(tmp_path, 7)

            async with anyio.create_task_group() as group:
                group.start_soon(update)
                await two.begun.wait()
                left.cancel()
                await anyio.wait_all_tasks_blocked()
                assert engine.version == 0, "it has not ended"
                two.may_end.set()
            assert one.version == two.version == engine.version == 7
            assert len(engine.serving) == 2
            assert engine.fleet.running.is_set()


async def test_a_server_that_was_started_again_behind_our_back_is_given_its_adapter(tmp_path: Path) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text("{}")
    save_file({}, tmp_path / ADAPTER_WEIGHTS)
    forgotten = 0

    def answer(body: Json) -> Answer:
        if server.told.count("/load_lora_adapter") == forgotten:
            return web.json_response({"error": {"message": f"not loaded: {{'{body['lora_path']}'}}"}}, status=400)
        return list(sound_states(4))

    async with scripted_server(answer) as server, sglang_engine([server.url], limits=LIMITS) as engine:
        await engine.update_weights(tmp_path, 1)
        for _ in range(2):
            reply = await engine.generate([1, 2, 3], FOUR, "session")
            assert [span.version for span in reply.versions] == [1]
            forgotten = server.told.count("/load_lora_adapter")
        assert engine.fleet.failures == 1


async def test_a_server_that_puts_its_adapter_away_again_and_again_fails_the_call_and_not_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text("{}")
    save_file({}, tmp_path / ADAPTER_WEIGHTS)
    async with (
        scripted_server(lambda body: web.json_response({"error": body["lora_path"]}, status=400)) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
    ):
        await engine.update_weights(tmp_path, 1)
        with pytest.raises(EngineError, match=f"3 replies in a row.*{server.url} lost the adapter.*--max-loaded-loras"):
            await engine.generate([1, 2, 3], FOUR, "session")


async def test_another_refusal_of_a_request_with_an_adapter_is_the_requests_fault(tmp_path: Path) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text("{}")
    save_file({}, tmp_path / ADAPTER_WEIGHTS)
    refusal = {"error": {"message": "too long"}}
    async with (
        scripted_server(lambda body: web.json_response(refusal, status=400)) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
    ):
        await engine.update_weights(tmp_path, 1)
        with pytest.raises(EngineError, match="too long"):
            await engine.generate([1, 2, 3], FOUR, "session")
        assert engine.serving == [server.url]


@pytest.mark.parametrize("version", [10**VERSION_DIGITS, 2**63, -1])
async def test_a_version_that_no_reply_could_name_is_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(ValidationError):
        WeightsBody(path=str(tmp_path), version=version)
    async with (
        scripted_server(lambda body: list(sound_states(4, version=server.version))) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
    ):
        with pytest.raises(EngineError, match="no version of weights"):
            await engine.update_weights(tmp_path, version)
        newest = 10**VERSION_DIGITS - 1
        await engine.update_weights(tmp_path, newest)
        reply = await engine.generate([1, 2, 3], FOUR, "session")
        assert [span.version for span in reply.versions] == [newest]


async def test_an_aborted_reply_of_a_schema_waits_before_it_starts_over() -> None:
    asked_at: list[float] = []

    def answer(body: Json) -> Answer:
        asked_at.append(anyio.current_time())
        if len(asked_at) == 10:
            return list(sound_states(4))
        (state,) = sound_states(1)
        state["meta_info"]["finish_reason"] = {"type": "abort"}
        return [state]

    async with scripted_server(answer) as server, sglang_engine([server.url], limits=LIMITS) as engine:
        reply = await engine.generate([1, 2, 3], Sampling(max_new_tokens=4, json_schema="{}"), "session")
        assert reply.output_ids == [0, 1, 2, 3]
        assert min(later - sooner for sooner, later in zip(asked_at, asked_at[1:], strict=False)) >= 0.004
