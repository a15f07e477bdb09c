"""What is known of replies that have not ended, on a real SGLang server: it may be gone on from, so it must be right at all times."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import psutil
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.engine.growing_replies import Growing, growing_replies
from tests.rescoring import Rescorer

pytestmark = [pytest.mark.anyio, pytest.mark.soak]
REPLIES = 16
UPDATES = 12
MAX_CHECKED = 600
Reply = tuple[list[int], Generation]


async def assert_exact(replies: list[Reply], versions: list[Path]) -> None:
    record = TokenRecord()
    for prompt, generation in replies:
        record.add("id", None, prompt, generation, 1.0)
    assert await in_thread(lambda: Rescorer(versions).largest_difference(record)) < 1e-4


@contextmanager
def detokenizer(url: str) -> Iterator[psutil.Process]:
    """The process of a server through which tokens pass, and answers to control calls do not. It runs again afterwards."""
    port = str(urlsplit(url).port)
    (process,) = [
        child
        for server in psutil.process_iter()
        if server.ppid() == psutil.Process().pid and port in server.cmdline()
        for child in server.children(recursive=True)
        if "detokenizer" in child.name()
    ]
    try:
        yield process
    finally:
        process.resume()


@dataclass
class Replies:
    """Replies that a server makes all the while, what was known of them meanwhile, and those that ended."""

    engine: SGLangEngine
    growing: Growing
    known: dict[str, Reply] = field(default_factory=dict)
    whole: list[Reply] = field(default_factory=list)

    async def converse(self, index: int) -> None:
        prompt = [1, 2, 3, 4 + index]
        watched = (lambda ids: None) if index % 2 else None  # a watched reply is streamed token by token
        while True:
            generation = await self.engine.generate(prompt, Sampling(max_new_tokens=100), f"s{index}", watched)
            self.whole.append((prompt, generation))

    async def look(self) -> None:
        while True:
            await anyio.sleep(0.01)
            for prompt, reply in self.growing[-REPLIES:]:
                if (known := reply.so_far()).output_ids:
                    self.known.setdefault(repr((prompt, known)), (prompt, known))

    async def grow(self, by: int = 4) -> None:
        """Wait until so much more was known."""
        count = len(self.known) + by
        await wait_until(lambda: len(self.known) >= count, 60)

    def some(self) -> list[Reply]:
        """What was known, or a part of it."""
        chosen = random.Random(0).sample(list(self.known.values()), min(MAX_CHECKED, len(self.known)))
        return chosen + self.whole

    @asynccontextmanager
    async def made(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            for index in range(REPLIES):
                group.start_soon(self.converse, index)
            group.start_soon(self.look)
            yield
            group.cancel_scope.cancel()


async def test_tokens_that_arrive_after_a_weight_update_are_not_taken_for_tokens_of_the_new_weights(
    sglang_url: str, versions: list[Path]
) -> None:
    chance = random.Random(1)
    async with sglang_engine([sglang_url]) as engine:
        await engine.update_weights(versions[0], 0)
        with growing_replies() as growing, detokenizer(sglang_url) as process:
            replies = Replies(engine, growing)
            async with replies.made():
                for version in range(1, 1 + UPDATES):
                    await replies.grow()
                    process.suspend()
                    await anyio.sleep(chance.uniform(0, 0.1))
                    await engine.update_weights(versions[version % len(versions)], version)
                    await anyio.sleep(chance.uniform(0, 0.1))
                    process.resume()
                await wait_until(lambda: sum(len(reply.versions) > 1 for _, reply in replies.whole) >= 4, 60)
        await engine.update_weights(versions[0], 0)
    await assert_exact(replies.some(), [versions[v % len(versions)] for v in range(1 + UPDATES)])


async def test_a_reply_that_is_aborted_in_the_queue_goes_on_from_what_was_sent_of_it(
    sglang_url: str, versions: list[Path]
) -> None:
    async with sglang_engine([sglang_url]) as engine:
        await engine.update_weights(versions[0], 0)
        (server,) = engine.fleet.servers
        with growing_replies() as growing:
            replies = Replies(engine, growing)
            async with replies.made():
                for _ in range(UPDATES):
                    await replies.grow()
                    await engine.pause("retract")  # puts all replies back into the queue
                    await server.abort_all(10)
                    await engine.resume()
                await wait_until(lambda: len(replies.whole) >= 4, 60)
        assert engine.fleet.bad_replies == engine.fleet.failures == 0
    await assert_exact(replies.some(), versions)
