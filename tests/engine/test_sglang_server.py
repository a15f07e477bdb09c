"""What the gate asks of real SGLang servers: generate, interrupt and update in each mode, and one killed in the middle of replies."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client.fleet_state import EngineLimits
from agentrl.engine.client.sglang import SGLangEngine, sglang_engine
from agentrl.engine.protocol import PauseMode, Sampling
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.conftest import start_server, stop_server
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.rescoring import Rescorer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
REPLIES = 6
TOKENS = 300
TOLERANCE = 1e-4
"""Between logprobs of SGLang and of transformers, both in float32."""


class Replies:
    """Replies to prompts of their own that are open at the same time, with the tokens that each has so far."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.ended: list[tuple[list[int], Generation]] = []

    async def ask(self, engine: SGLangEngine, number: int, tokens: int = TOKENS) -> None:
        prompt = [1, 2, 3, 4 + number]

        def show(ids: list[int]) -> None:
            self.lengths[number] = len(ids)

        sampling = Sampling(max_new_tokens=tokens)
        self.ended.append((prompt, await engine.generate(prompt, sampling, f"s{number}", show)))

    @asynccontextmanager
    async def open(self, engine: SGLangEngine) -> AsyncIterator[Callable[[], Any]]:
        """Begin all replies; what is yielded waits until some token more is known. All have ended when the context has."""

        async def grown() -> None:
            before = sum(self.lengths.values())
            await wait_until(lambda: sum(self.lengths.values()) >= before + REPLIES, 60)

        async with anyio.create_task_group() as group:
            for number in range(REPLIES):
                group.start_soon(self.ask, engine, number)
            yield grown

    async def assert_exact(self, versions: list[Path]) -> None:
        """Each token has one version, and the logprob that transformers computes under the weights of that version."""
        record = TokenRecord()
        for prompt, generation in self.ended:
            covered = [place for span in generation.versions for place in range(span.start, span.end)]
            assert covered == list(range(len(generation.output_ids)))
            record.add("id", None, prompt, generation, 1.0)
        assert await in_thread(lambda: Rescorer(versions).largest_difference(record)) < TOLERANCE


async def test_a_conversation_is_recorded_as_the_server_saw_it(
    sglang_url: str, nano_format: ChatFormat, versions: list[Path]
) -> None:
    async with sglang_engine([sglang_url]) as raw:
        engine = Tapped(raw)
        async with open_proxy(engine, nano_format, "nano") as proxy:
            await raw.update_weights(versions[0], 0)
            session = proxy.open_session()
            messages: list[Any] = [{"role": "user", "content": "12 + 30 ="}]
            async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
                for _ in range(3):
                    reply = await client.chat.completions.create(model="nano", messages=messages, max_tokens=20)
                    said = reply.choices[0].message.content
                    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "1 + 1 ="}]
    assert len(session.record.turns) == 3
    assert len(session.record.leaves()) == 1, "each request extends the turn before"
    assert_record_is_what_the_engine_saw(session.record, engine.by_session[session.key])
    assert await in_thread(lambda: Rescorer(versions).largest_difference(session.record)) < TOLERANCE


@pytest.mark.parametrize("mode", ["retract", "abort"])
async def test_open_replies_go_on_under_new_weights_and_each_token_has_its_version(
    mode: PauseMode, sglang_url: str, versions: list[Path]
) -> None:
    replies = Replies()
    async with sglang_engine([sglang_url], pause_mode=mode) as engine:
        await engine.update_weights(versions[0], 0)
        async with replies.open(engine) as grown:
            for version in (1, 2):
                await grown()
                await engine.update_weights(versions[version], version)
        assert engine.fleet.bad_replies == engine.fleet.failures == 0
    assert max(len(generation.versions) for _, generation in replies.ended) >= 2
    await replies.assert_exact(versions)


async def test_in_place_keeps_the_cache_of_open_replies_alone(sglang_url: str, versions: list[Path]) -> None:
    opened, later = Replies(), Replies()
    async with sglang_engine([sglang_url], pause_mode="in_place") as engine:
        await engine.update_weights(versions[0], 0)
        async with opened.open(engine) as grown:
            await grown()
            await engine.update_weights(versions[1], 1)
            await later.ask(engine, 0, tokens=20)
        assert engine.fleet.bad_replies == engine.fleet.failures == 0
    assert max(len(generation.versions) for _, generation in opened.ended) == 2
    assert [span.version for _, generation in later.ended for span in generation.versions] == [1]
    await later.assert_exact(versions)


async def test_replies_of_a_server_that_is_killed_end_on_another(sglang_url: str, versions: list[Path]) -> None:
    killed, killed_url = await in_thread(lambda: start_server(NANO, kind="sglang"))
    replies = Replies()
    try:
        limits = EngineLimits(health_interval_s=0.2)
        async with sglang_engine([sglang_url, killed_url], limits=limits) as engine:
            await engine.update_weights(versions[0], 0)
            async with replies.open(engine) as grown:
                await grown()
                await wait_until(lambda: all(server.in_flight for server in engine.fleet.servers), 30)
                os.killpg(killed.pid, signal.SIGKILL)
            assert engine.fleet.failures == 1
            assert engine.serving == [sglang_url]
    finally:
        await in_thread(stop_server, killed)
    assert len(replies.ended) == REPLIES
    await replies.assert_exact(versions)
