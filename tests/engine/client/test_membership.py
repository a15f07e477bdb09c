"""Servers join and leave in the middle of replies and updates; whatever happens, the record stays exact."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from agentrl.engine.client.fleet_state import EngineLimits, FleetState, FollowerReport, LossReport
from agentrl.engine.client.following_engine import FollowingEngine, following_engine
from agentrl.engine.client.reply_client import ReplyClient
from agentrl.engine.client.sglang import SGLangEngine, sglang_engine
from agentrl.engine.protocol import PauseMode, Sampling
from agentrl.errors import EngineError
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.conftest import start_server, stop_server
from tests.engine.scripted_server import scripted_server, sound_states
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
LIMITS = EngineLimits(health_interval_s=0.2, hang_timeout_s=20, request_timeout_s=120)
LONG = 400
FOUR = Sampling(max_new_tokens=4)


class Servers:
    """Real embedded servers, each a process that may be killed."""

    def __init__(self) -> None:
        self.by_url: dict[str, subprocess.Popen[str]] = {}

    async def start(self, *flags: str) -> str:
        process, url = await anyio.to_thread.run_sync(lambda: start_server(NANO, *flags))
        self.by_url[url] = process
        return url

    async def restart(self, url: str) -> str:
        """Start a server again at its address, as whoever runs it does."""
        await anyio.to_thread.run_sync(stop_or_reap, self.by_url.pop(url))
        return await self.start("--port", url.rpartition(":")[2])

    async def stop(self) -> None:
        for process in self.by_url.values():
            await anyio.to_thread.run_sync(stop_or_reap, process)


def stop_or_reap(process: subprocess.Popen[str]) -> None:
    stop_server(process)


@asynccontextmanager
async def real_servers(count: int) -> AsyncIterator[Servers]:
    servers = Servers()
    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(servers.start)
        yield servers
    finally:
        with anyio.CancelScope(shield=True):
            await servers.stop()


@asynccontextmanager
async def followed(engine: SGLangEngine) -> AsyncIterator[FollowingEngine]:
    """An engine that follows, over a channel that carries JSON alone."""
    to_follower, states = anyio.create_memory_object_stream[FleetState](100)
    to_engine, reports = anyio.create_memory_object_stream[FollowerReport | LossReport](100)
    with engine.fleet.followers.following("the follower") as known:
        async with (
            following_engine(engine.state(), to_engine.send_nowait) as follower,
            anyio.create_task_group() as group,
        ):

            async def tell() -> None:
                number = -1
                while True:
                    state = engine.state()
                    number = state.number
                    await to_follower.send(state)
                    await engine.fleet.followers.next_after(number)

            async def take() -> None:
                async for state in states:
                    follower.take(state)
                    await to_engine.send(follower.report())
                    if follower.ending:
                        group.start_soon(report_end)

            async def report_end() -> None:
                await follower.until_ended()
                await to_engine.send(follower.report())

            async def hear() -> None:
                async for said in reports:
                    if isinstance(said, LossReport):
                        group.start_soon(engine.fleet.judge, said, "the follower")
                    else:
                        engine.take_report(known, said)

            for task in (tell, take, hear):
                group.start_soon(task)
            try:
                yield follower
            finally:
                group.cancel_scope.cancel()
                for stream in (to_follower, states, to_engine, reports):
                    stream.close()


def exact(results: Sequence[tuple[list[int], Generation]], versions: list[Path]) -> None:
    record = TokenRecord()
    for prompt, generation in results:
        assert generation.finish == ("length" if len(generation.output_ids) == LONG else "stop")
        record.add("id", None, prompt, generation, 1.0)
    assert Rescorer(versions).largest_difference(record) < 1e-4


async def ask_many(
    client: ReplyClient, results: list[tuple[list[int], Generation]], starts: Sequence[int], *, streamed: bool = False
) -> None:
    async def one(start: int) -> None:
        prompt, shown = [1, 2, 3, start], list[int]()
        show = (lambda ids: shown.__setitem__(slice(None), ids)) if streamed else None
        generation = await client.generate(prompt, Sampling(max_new_tokens=LONG), f"s{start}", show)
        assert not streamed or generation.output_ids[: len(shown)] == shown
        results.append((prompt, generation))

    async with anyio.create_task_group() as group:
        for start in starts:
            group.start_soon(one, start)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
async def test_replies_go_on_where_their_server_leaves_and_a_newcomer_has_the_weights(
    mode: PauseMode, versions: list[Path]
) -> None:
    results: list[tuple[list[int], Generation]] = []
    async with real_servers(2) as servers:
        first, second = servers.by_url
        async with (
            sglang_engine([first], pause_mode=mode, limits=LIMITS) as engine,
            followed(engine) as follower,
            anyio.create_task_group() as group,
        ):
            await engine.update_weights(versions[1], 1)
            group.start_soon(lambda: ask_many(engine, results, range(10, 14)))
            group.start_soon(lambda: ask_many(follower, results, range(20, 24)))
            await wait_until(lambda: engine.in_flight >= 4 and follower.in_flight == 4, 40)
            with pytest.raises(EngineError, match="no other server is in service"):
                await engine.remove_server(first)
            await engine.add_server(second)
            await engine.remove_server(first)
            assert engine.serving == [second]
            await engine.update_weights(versions[2], 2)
            with pytest.raises(EngineError, match="none of the engine's servers"):
                await engine.remove_server(first)
            with pytest.raises(EngineError, match="already"):
                await engine.add_server(second + "/")
        assert engine.fleet.failures == engine.fleet.bad_replies == 0
    assert len(results) == 8
    assert {span.version for _, generation in results for span in generation.versions} <= {1, 2}
    if mode != "in_place":  # which computes with what the weights before have cached
        exact(results, versions)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_joins_leaves_dies_and_is_updated_the_record_is_exact(seed: int, versions: list[Path]) -> None:
    draw = random.Random(seed)
    mode: PauseMode = draw.choice(["retract", "abort"])
    results: list[tuple[list[int], Generation]] = []
    async with real_servers(3) as servers:
        first = next(iter(servers.by_url))
        async with sglang_engine([first], pause_mode=mode, limits=LIMITS, restart=servers.restart) as engine:
            async with followed(engine) as follower:
                version, asked, done = 0, 0, anyio.Event()

                async def ask_on(client: ReplyClient, streamed: bool) -> None:
                    nonlocal asked
                    while not done.is_set():
                        asked += 3
                        await ask_many(client, results, range(asked, asked + 3), streamed=streamed)

                async def change() -> None:
                    nonlocal version
                    what = draw.choice(["join", "leave", "kill", "update", "update", "wait"])
                    members = [server.url for server in engine.fleet.servers]
                    try:
                        if what == "join" and (new := [url for url in servers.by_url if url not in members]):
                            await engine.add_server(draw.choice(new), servers.restart)
                        elif what == "leave":
                            await engine.remove_server(draw.choice(members))
                        elif what == "kill" and len(engine.serving) > 1:
                            servers.by_url[draw.choice(engine.serving)].send_signal(signal.SIGKILL)
                        elif what == "update":
                            version = min(version + 1, 3)
                            await engine.update_weights(versions[version], version)
                        else:
                            await anyio.sleep(draw.random())
                    except EngineError as error:
                        if not any(
                            known in str(error)
                            for known in ("no other server", "cannot be reached", "already", "none of the")
                        ):
                            raise

                async with anyio.create_task_group() as group:
                    group.start_soon(ask_on, engine, False)
                    group.start_soon(ask_on, follower, False)
                    for _ in range(12):
                        async with anyio.create_task_group() as changes:  # two at the same time
                            changes.start_soon(change)
                            changes.start_soon(change)
                        await anyio.sleep(draw.random() / 4)
                    done.set()
            assert engine.in_flight == 0
    assert len(results) >= 6
    exact(results, versions)


async def test_a_server_that_a_follower_alone_cannot_reach_stays_in_service() -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4))) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        followed(engine) as follower,
    ):
        (known,) = follower.fleet.servers
        follower.fleet.mark_down(known, "cannot be reached", unreachable=True)
        reply = await follower.generate([1, 2, 3], FOUR, "session")
        assert reply.output_ids == [0, 1, 2, 3]
        assert engine.fleet.failures == 0
        assert engine.fleet.servers[0].incarnation == 2


async def test_a_server_that_computes_with_other_weights_than_a_follower_was_told_is_given_them(tmp_path: Path) -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4, version=server.version))) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        followed(engine) as follower,
    ):
        await engine.update_weights(tmp_path, 3)
        server.version = 0  # started again behind our back
        reply = await follower.generate([1, 2, 3], FOUR, "session")
        assert [span.version for span in reply.versions] == [3]
        assert engine.fleet.failures == 1


async def test_bad_replies_of_a_follower_count_and_in_a_row_they_take_the_server_out() -> None:
    def answer(body: Any) -> Any:
        states = list(sound_states(4))
        if len(server.asked) <= 3:
            states[-1]["meta_info"]["output_token_logprobs"][0][0] = 7.0
        return states

    async with (
        scripted_server(answer) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        followed(engine) as follower,
    ):
        with pytest.raises(EngineError, match="replies in a row could not be used"):
            await follower.generate([1, 2, 3], FOUR, "session")
        await wait_until(lambda: engine.fleet.failures == 1, 40)
        reply = await follower.generate([1, 2, 3], FOUR, "session")
        assert reply.output_ids == [0, 1, 2, 3]
        await wait_until(lambda: engine.fleet.bad_replies == 3, 40)


async def test_followers_ask_nothing_while_replies_are_ended_and_know_new_weights_before_they_are_loaded(
    tmp_path: Path,
) -> None:
    seen: list[tuple[int, bool]] = []

    def load(body: Any) -> web.Response:
        seen.append((follower._model.newest_version or 0, follower.fleet.running.is_set()))
        return web.json_response({"success": True})

    async with (
        scripted_server(lambda body: list(sound_states(4, version=server.version)), load) as server,
        sglang_engine([server.url], pause_mode="abort", limits=LIMITS) as engine,
        followed(engine) as follower,
    ):
        async with anyio.create_task_group() as group:
            await engine.pause("abort")
            replies: list[Generation] = []

            async def ask() -> None:
                replies.append(await follower.generate([1, 2, 3], FOUR, "session"))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert server.asked == []
            await engine.update_weights(tmp_path, 5)
        assert seen == [(5, False)]
        assert [span.version for span in replies[0].versions] == [5]
        assert follower.version == 5


async def test_a_follower_that_does_not_answer_holds_no_update_up_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentrl.engine.client.followers.ACKNOWLEDGE_TIMEOUT_S", 0.2)
    async with (
        scripted_server(lambda body: []) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
    ):
        with engine.fleet.followers.following("one that is blocked"):
            await engine.update_weights(tmp_path, 1)
        assert engine.version == server.version == 1
