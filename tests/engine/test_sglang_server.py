"""What the gate asks of a real SGLang server: generate, interrupt and update in each mode, and die in the middle of replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.engine.protocol import PauseMode, Sampling
from agentrl.errors import EngineError
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.engine.growing_replies import growing_replies
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.rescoring import Rescorer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
REPLIES = 6
TOKENS = 200
TOLERANCE = 1e-4
"""Between logprobs of SGLang and of transformers, both in float32."""


class Replies:
    """Replies that servers make all the while, to prompts of their own, and the updates of weights that fall into them."""

    def __init__(self, engine: SGLangEngine, versions: list[Path]) -> None:
        self.open: dict[int, int] = {}
        """How many tokens are known of each reply that is open."""
        self.ended: list[tuple[list[int], Generation]] = []
        self.served = [versions[0]]
        """The weights of each version."""
        self._engine, self._versions = engine, versions

    async def ask(self, number: int, tokens: int = TOKENS) -> None:
        prompt = [1, 2, 3, 4 + number]

        def show(ids: list[int]) -> None:
            self.open[number] = len(ids)

        self.open[number] = 0
        reply = await self._engine.generate(prompt, Sampling(max_new_tokens=tokens), f"s{number}", show)
        del self.open[number]
        self.ended.append((prompt, reply))

    @asynccontextmanager
    async def made(self) -> AsyncIterator[None]:
        """Have replies open for the length of the context, after which all have ended."""
        over = False

        async def converse(number: int) -> None:
            while not over:
                await self.ask(number)

        async with anyio.create_task_group() as group:
            for number in range(REPLIES):
                group.start_soon(converse, number)
            await self.all_open()
            yield
            over = True

    async def all_open(self) -> None:
        """Wait until each reply that is open has a token."""
        await wait_until(lambda: len(self.open) == REPLIES and min(self.open.values()) > 0, 90)

    async def update(self) -> None:
        """Update weights, and once more as long as no reply was open meanwhile."""
        split = False
        while not split:
            await self.all_open()
            newest, ended = len(self.served), len(self.ended)
            self.served.append(self._versions[newest % len(self._versions)])
            await self._engine.update_weights(self.served[newest], newest)
            await self._more_ended(ended)
            made_by = [{span.version for span in reply.versions} for _, reply in self.ended[ended:]]
            split = any({newest - 1, newest} <= numbers for numbers in made_by)

    async def _more_ended(self, than: int) -> None:
        await wait_until(lambda: len(self.ended) > than, 90)

    async def assert_exact(self) -> None:
        """Each token has one version, and the logprob that transformers computes under the weights of that version."""
        record = TokenRecord()
        for prompt, generation in self.ended:
            covered = [place for span in generation.versions for place in range(span.start, span.end)]
            assert covered == list(range(len(generation.output_ids)))
            record.add("id", None, prompt, generation, 1.0)
        assert await in_thread(lambda: Rescorer(self.served).largest_difference(record)) < TOLERANCE


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
    assert await in_thread(lambda: Rescorer(versions[:1]).largest_difference(session.record)) < TOLERANCE


async def test_a_prompt_is_answered_up_to_the_length_that_the_server_says_it_holds(sglang_url: str) -> None:
    one = Sampling(max_new_tokens=1)
    async with sglang_engine([sglang_url]) as engine:
        held = engine.context_length or 0
        assert len((await engine.generate([1] * (held - 1), one, "session")).output_ids) == 1
        with pytest.raises(EngineError, match=f"exceeds the maximum allowed length \\({held} tokens\\)"):
            await engine.generate([1] * held, one, "session")


@pytest.mark.parametrize("mode", ["retract", "abort"])
async def test_open_replies_go_on_under_new_weights_and_each_token_has_its_version(
    mode: PauseMode, sglang_url: str, versions: list[Path]
) -> None:
    async with sglang_engine([sglang_url], pause_mode=mode) as engine:
        await engine.update_weights(versions[0], 0)
        replies = Replies(engine, versions)
        async with replies.made():
            await replies.update()
            await replies.update()
        assert engine.fleet.bad_replies == engine.fleet.failures == 0
    await replies.assert_exact()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_an_update_ends_no_reply_that_stays_open(mode: PauseMode, sglang_url: str, versions: list[Path]) -> None:
    """SGLang can abort what runs when it takes weights, and does so by default where the version alone changes (`/update_weight_version`,
    which nothing here calls): https://github.com/radixark/miles/issues/2589. Then there would be a second request for the rest."""
    never_ends = Sampling(max_new_tokens=300, logit_bias=[(0, -100.0), (2, -100.0)])
    replies: list[Generation] = []
    shown: list[int] = []
    async with sglang_engine([sglang_url], pause_mode=mode) as engine:
        await engine.update_weights(versions[0], 0)

        async def ask() -> None:
            replies.append(await engine.generate([1, 2, 3], never_ends, "session", shown.extend))

        with growing_replies() as requests:
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await wait_until(lambda: len(shown) > 0, 90)
                await engine.update_weights(versions[1], 1)
        await engine.update_weights(versions[0], 0)
    assert (len(replies[0].output_ids), replies[0].finish) == (300, "length")
    assert [span.version for span in replies[0].versions] == [0, 1]
    assert len(requests) == 1


async def test_in_place_keeps_the_cache_of_open_replies_alone(sglang_url: str, versions: list[Path]) -> None:
    async with sglang_engine([sglang_url], pause_mode="in_place") as engine:
        await engine.update_weights(versions[0], 0)
        replies, later = Replies(engine, versions), Replies(engine, versions)
        async with replies.made():
            await replies.update()
            await later.ask(0, tokens=20)  # what an open reply began with, too
        assert engine.fleet.bad_replies == engine.fleet.failures == 0
    later.served = replies.served
    assert [span.version for span in later.ended[0][1].versions] == [len(replies.served) - 1]
    await later.assert_exact()


@asynccontextmanager
async def mortal(url: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Another address of a server, and how to have it die there: all connections are cut, and there are no more.

    A second server that is really killed would take as long to start as all tests here take: the soak has that, in test_launch.py.
    """
    port, life = int(url.rpartition(":")[2]), anyio.CancelScope()

    async def carry(source: SocketStream, sink: SocketStream, both: anyio.CancelScope) -> None:
        with suppress(anyio.BrokenResourceError):
            async for data in source:
                await sink.send(data)
        both.cancel()

    async def connect(client: SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as group:
            group.start_soon(carry, client, server, group.cancel_scope)
            group.start_soon(carry, server, client, group.cancel_scope)

    async def live() -> None:
        with life:
            async with listener:
                await listener.serve(connect)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with anyio.create_task_group() as group:
        group.start_soon(live)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}", life.cancel
        life.cancel()


async def test_replies_of_a_server_that_dies_end_on_another(sglang_url: str, versions: list[Path]) -> None:
    async with sglang_engine([sglang_url]) as engine:
        await engine.update_weights(versions[0], 0)
    async with mortal(sglang_url) as (mortal_url, die), sglang_engine([sglang_url, mortal_url]) as engine:
        replies = Replies(engine, versions)
        _, dying = engine.fleet.servers
        async with replies.made():
            await wait_until(lambda: dying.in_flight > 0, 90)
            die()
            await wait_until(lambda: engine.fleet.failures == 1, 90)
            await replies.all_open()
        assert engine.serving == [sglang_url]
        assert engine.fleet.bad_replies == 0
    await replies.assert_exact()
