"""Replicas of an engine call its servers themselves, and know of a change before it begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from agentrl.engine.client import EngineLimits, SGLangEngine, sglang_engine
from agentrl.engine.client.replica import FailureReport, FleetState, ReplicaEngine, ReplicaReport, replica_engine
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.record.tokens import Generation
from tests.components import wait_until
from tests.engine.scripted_server import scripted_server, sound_states

pytestmark = pytest.mark.anyio
LIMITS = EngineLimits(health_interval_s=0.2, hang_timeout_s=20, request_timeout_s=120)
FOUR = Sampling(max_new_tokens=4)


@asynccontextmanager
async def replica_of(engine: SGLangEngine) -> AsyncIterator[ReplicaEngine]:
    """A replica of an engine, with what the main process and a worker do for each other."""
    to_replica, states = anyio.create_memory_object_stream[FleetState](100)
    to_engine, reports = anyio.create_memory_object_stream[ReplicaReport | FailureReport](100)
    with engine.fleet.replicas.joined("the replica") as known:
        async with (
            replica_engine(engine.state(), to_engine.send_nowait) as replica,
            anyio.create_task_group() as group,
        ):

            async def tell() -> None:
                number = -1
                while True:
                    state = engine.state()
                    number = state.number
                    await to_replica.send(state)
                    await engine.fleet.replicas.next_after(number)

            async def take() -> None:
                async for state in states:
                    replica.take(state)
                    await to_engine.send(replica.report())
                    if state.ends_replies:
                        group.start_soon(report_end)

            async def report_end() -> None:
                await replica.until_ended()
                await to_engine.send(replica.report())

            async def hear() -> None:
                async for said in reports:
                    if isinstance(said, FailureReport):
                        group.start_soon(engine.handle_failure, said, "the replica")
                    else:
                        engine.take_report(known, said)

            for task in (tell, take, hear):
                group.start_soon(task)
            try:
                yield replica
            finally:
                group.cancel_scope.cancel()
                for stream in (to_replica, states, to_engine, reports):
                    stream.close()


async def test_a_server_that_a_replica_alone_cannot_reach_stays_in_service() -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4))) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        replica_of(engine) as replica,
    ):
        (known,) = replica.fleet.servers
        replica.fleet.mark_down(known, "cannot be reached", unreachable=True)
        reply = await replica.generate([1, 2, 3], FOUR, "session")
        assert reply.output_ids == [0, 1, 2, 3]
        assert engine.fleet.failures == 0
        assert engine.serving == [server.url]


@pytest.mark.parametrize(("changes", "serving"), [(0, False), (1, True)])
async def test_what_a_replica_holds_against_a_server_counts_unless_it_did_not_know_of_the_newest_change(
    changes: int, serving: bool
) -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4))) as server,
        sglang_engine([server.url], limits=LIMITS, restart=never) as engine,
    ):
        failure = FailureReport(server.url, engine.state().number, "3 replies in a row could not be used", False)
        for _ in range(changes):
            engine.fleet.replicas.announce()
        await engine.handle_failure(failure, "the replica")
        assert engine.serving == [server.url] * serving


async def never(url: str) -> str:
    """Start no server."""
    await anyio.sleep_forever()
    return url


async def test_tokens_are_counted_at_the_server_that_made_them_whoever_asked_for_them(tmp_path: Path) -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4))) as one,
        scripted_server(lambda body: list(sound_states(4))) as other,
        sglang_engine([one.url, other.url], limits=LIMITS) as engine,
        replica_of(engine) as replica,
    ):
        for session in ("a", "b"):
            await engine.generate([1, 2, 3], FOUR, session)
            await replica.generate([1, 2, 3], FOUR, session)
        await engine.update_weights(tmp_path, 3)  # the replica reports that it has taken it over
        counted = {server.url: server.take_tokens() for server in engine.fleet.servers}
        assert counted == {server.url: 4 * len(server.asked) for server in (one, other)}
        assert sum(counted.values()) == 16


async def test_a_server_that_computes_with_other_weights_than_a_replica_was_told_is_given_them(tmp_path: Path) -> None:
    async with (
        scripted_server(lambda body: list(sound_states(4, version=server.version))) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        replica_of(engine) as replica,
    ):
        await engine.update_weights(tmp_path, 3)
        server.version = 0  # started again behind our back
        reply = await replica.generate([1, 2, 3], FOUR, "session")
        assert [span.version for span in reply.versions] == [3]
        assert engine.fleet.failures == 1


async def test_bad_replies_of_a_replica_count_and_in_a_row_they_take_the_server_out() -> None:
    def answer(body: Any) -> Any:
        states = list(sound_states(4))
        if len(server.asked) <= 3:
            states[-1]["meta_info"]["output_token_logprobs"][0][0] = 7.0
        return states

    async with (
        scripted_server(answer) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
        replica_of(engine) as replica,
    ):
        with pytest.raises(EngineError, match="replies in a row could not be used"):
            await replica.generate([1, 2, 3], FOUR, "session")
        await wait_until(lambda: engine.fleet.failures == 1, 40)
        reply = await replica.generate([1, 2, 3], FOUR, "session")
        assert reply.output_ids == [0, 1, 2, 3]
        await wait_until(lambda: engine.fleet.bad_replies == 3, 40)


async def test_replicas_ask_nothing_while_replies_are_ended_and_know_new_weights_before_they_are_loaded(
    tmp_path: Path,
) -> None:
    seen: list[tuple[int, bool]] = []

    def load(body: Any) -> web.Response:
        seen.append((replica._model.newest_version or 0, replica.fleet.running.is_set()))
        return web.json_response({"success": True})

    async with (
        scripted_server(lambda body: list(sound_states(4, version=server.version)), load) as server,
        sglang_engine([server.url], pause_mode="abort", limits=LIMITS) as engine,
        replica_of(engine) as replica,
    ):
        async with anyio.create_task_group() as group:
            await engine.pause("abort")
            replies: list[Generation] = []

            async def ask() -> None:
                replies.append(await replica.generate([1, 2, 3], FOUR, "session"))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert server.asked == []
            await engine.update_weights(tmp_path, 5)
        assert seen == [(5, False)]
        assert [span.version for span in replies[0].versions] == [5]
        assert replica.version == 5


async def test_a_replica_that_does_not_answer_holds_no_update_up_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentrl.engine.client.fleet.ACKNOWLEDGE_TIMEOUT_S", 0.2)
    async with (
        scripted_server(lambda body: []) as server,
        sglang_engine([server.url], limits=LIMITS) as engine,
    ):
        with engine.fleet.replicas.joined("one that is blocked"):
            await engine.update_weights(tmp_path, 1)
        assert engine.version == server.version == 1
