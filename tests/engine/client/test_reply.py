"""The client: failures are EngineErrors that say what to do, cancelling aborts, sessions stick."""

from __future__ import annotations

from pathlib import Path

import anyio
import psutil
import pytest
from aiohttp import web
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import EngineLimits, sglang_engine
from agentrl.engine.client.fleet import Fleet
from agentrl.engine.client.server import ServedModel, SGLangServer, open_session
from agentrl.engine.client.stream import ServerLostError
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan, join_generations
from agentrl.record.trajectory import TokenRecord
from agentrl.system.host import free_port
from tests.components import wait_until
from tests.conftest import start_server, stop_server
from tests.engine.scripted_server import Answer, Json, scripted_server, sound_states
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio


async def test_progress_is_reported_and_ends_with_the_reply(server_url: str) -> None:
    async with sglang_engine([server_url]) as engine:
        states: list[list[int]] = []
        sampling = Sampling(max_new_tokens=30, seed=3)
        generation = await engine.generate([1, 2, 3], sampling, "s", states.append)
        assert states[-1] == generation.output_ids
        assert (await engine.generate([1, 2, 3], sampling, "s")).output_ids == generation.output_ids


@pytest.mark.soak
async def test_an_idle_connection_is_closed_here_before_a_server_can_close_it_under_a_request(server_url: str) -> None:
    port = int(server_url.rpartition(":")[2])
    sglang_keep_alive_s, margin_s = 5, 0.5

    def connections() -> int:
        return sum(bool(c.raddr) and c.raddr.port == port for c in psutil.Process().net_connections("tcp"))

    before = connections()
    async with sglang_engine([server_url], limits=EngineLimits(health_interval_s=60)):
        assert connections() > before
        with anyio.fail_after(sglang_keep_alive_s - margin_s):
            while connections() > before:
                await anyio.sleep(0.05)


async def test_a_server_is_paused_in_mode_abort_once_it_has_handed_its_replies_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engine.client.weights.ABORT_TIMEOUT_S", 60)
    handed_back = anyio.Event()
    open_at_pause: list[int] = []

    def answer(body: Json) -> Answer:
        if len(server.asked) > 1:
            return list(sound_states(2, first=2, version=server.version, prompt_tokens=len(body["input_ids"])))
        begun, end = sound_states(4, piece=2)
        end["output_ids"], end["meta_info"]["output_token_logprobs"] = [], []
        end["meta_info"] |= {
            "finish_reason": {"type": "abort"},
            "weight_versions": [{"version": "0", "start": 0, "end": 2}],
        }
        return [begun, handed_back.wait, end]

    def control(path: str) -> web.Response:
        if path == "/pause_generation":
            open_at_pause.append(engine.in_flight)
        if server.told.count("/abort_request") == 3:
            handed_back.set()
        return web.json_response({"success": True})

    async with scripted_server(answer) as server, sglang_engine([server.url], pause_mode="abort") as engine:
        server.control = control
        shown, replies = list[list[int]](), list[Generation]()

        async def ask() -> None:
            sampling = Sampling(max_new_tokens=4)
            replies.append(await engine.generate([1, 2, 3], sampling, "s", shown.append))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await wait_until(lambda: shown == [[0, 1]], 40)
            await engine.update_weights(tmp_path, 1)
    assert open_at_pause == [0]
    assert replies[0].output_ids == [0, 1, 2, 3]
    assert replies[0].versions == [VersionSpan(0, 0, 2), VersionSpan(1, 2, 4)]


async def test_a_slow_reply_is_an_error_with_the_setting_to_change(server_url: str) -> None:
    async with (
        sglang_engine([server_url], limits=EngineLimits(request_timeout_s=0.2)) as engine,
        sglang_engine([server_url]) as other,
    ):
        await other.pause("in_place")
        try:
            with pytest.raises(EngineError, match=r"rollout\.episode_timeout_s"):
                await engine.generate([1, 2, 3, 4], Sampling(max_new_tokens=5), "s")
        finally:
            await other.resume()


async def test_a_refused_request_names_the_server_and_its_reason(server_url: str) -> None:
    async with sglang_engine([server_url]) as engine:
        with pytest.raises(EngineError, match=r"/generate answered 400.*context length"):
            await engine.generate([1] * 2000, Sampling(max_new_tokens=1), "s")
        with pytest.raises(EngineError, match=r"/prepare_weights answered 400.*nonexistent"):
            await engine.update_weights(Path("/nonexistent"), 1)
        assert len((await engine.generate([1], Sampling(max_new_tokens=2), "s")).output_ids) <= 2


async def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        async with sglang_engine(["http://127.0.0.1:9"]):
            pass


@pytest.mark.slow
async def test_replies_of_a_server_that_is_killed_end_on_another(server_url: str, versions: list[Path]) -> None:
    process, url = await in_thread(start_server, NANO)
    try:
        async with sglang_engine([server_url]) as engine:
            await engine.update_weights(versions[0], 0)
        async with sglang_engine([server_url, url], limits=EngineLimits(health_interval_s=0.2)) as engine:
            begun: set[int] = set()
            record = TokenRecord()

            async def ask(number: int) -> None:
                prompt, sampling = [1, 2, 3, 4 + number], Sampling(max_new_tokens=300)
                reply = await engine.generate(prompt, sampling, f"s{number}", lambda _: begun.add(number))
                record.add("id", None, prompt, reply, 1.0)

            async with anyio.create_task_group() as group:
                for number in range(4):
                    group.start_soon(ask, number)
                await wait_until(
                    lambda: len(begun) == 4 and all(server.in_flight for server in engine.fleet.servers), 60
                )
                process.kill()
                await wait_until(lambda: engine.fleet.failures == 1, 60)
            assert engine.serving == [server_url]
            assert engine.fleet.bad_replies == 0
    finally:
        await in_thread(stop_server, process)
    assert len(record.turns) == 4
    assert await in_thread(lambda: Rescorer(versions[:1]).largest_difference(record)) < 1e-4


@pytest.mark.soak
async def test_with_no_server_left_a_request_is_an_error_not_a_hang() -> None:
    process, url = start_server(NANO)
    try:
        async with sglang_engine([url], limits=EngineLimits(request_timeout_s=3)) as engine:
            failures: list[EngineError] = []

            async def ask() -> None:
                try:
                    await engine.generate([1, 2], Sampling(max_new_tokens=900), "s")
                except EngineError as error:
                    failures.append(error)

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await wait_until(lambda: engine.in_flight == 1, 40)
                process.kill()
            assert "0 of 1 servers in service" in str(failures[0])
            with pytest.raises(EngineError, match="no server is in service"):
                await engine.health()
    finally:
        stop_server(process)


async def test_a_server_that_is_gone_is_named_in_a_short_sentence_and_its_time_does_not_count() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with open_session() as http:
        fleet = Fleet([SGLangServer(http, url, ServedModel()) for url in urls], EngineLimits(), None)
        with pytest.raises(ServerLostError, match=f"^{urls[0]} cannot be reached: nothing listens there$"):
            await fleet.servers[0].get("/health", 60)
        for server in fleet.servers:
            fleet.begin_service(server)
        fleet.mark_down(fleet.servers[0], "gone")
        assert fleet.clock() < fleet.clock(), "another is in service"
        fleet.mark_down(fleet.servers[1], "gone")
        stopped = fleet.clock()
        assert fleet.clock() == stopped
        fleet.begin_service(fleet.servers[0])
        assert fleet.clock() > stopped


@pytest.mark.soak
async def test_an_attached_server_that_returns_serves_the_current_weights(versions: list[Path]) -> None:
    process, url = start_server(NANO)
    port = url.rpartition(":")[2]
    try:
        async with sglang_engine([url], limits=EngineLimits(health_interval_s=0.2)) as engine:
            await engine.update_weights(versions[2], 2)
            process.kill()
            process.wait()
            again, _ = start_server(NANO, "--port", port)
            try:
                generation = await engine.generate([1, 2, 3], Sampling(max_new_tokens=20), "s")
                assert {span.version for span in generation.versions} == {2}
            finally:
                stop_server(again)
    finally:
        stop_server(process)


def test_parts_of_an_aborted_reply_join_into_one() -> None:
    first = Generation(output_ids=[1, 2], logprobs=[-1, -2], versions=[VersionSpan(3, 0, 2)], finish="abort")
    second = Generation(output_ids=[3], logprobs=[-3], versions=[VersionSpan(4, 0, 1)], finish="stop")
    same = Generation(output_ids=[4], logprobs=[-4], versions=[VersionSpan(4, 0, 1)], finish="length")
    joined = join_generations(join_generations(first, second), same)
    assert joined.output_ids == [1, 2, 3, 4]
    assert joined.versions == [VersionSpan(3, 0, 2), VersionSpan(4, 2, 4)]
    assert joined.finish == "length"
