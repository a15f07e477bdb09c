"""What is known of replies that have not ended, on a real SGLang server: it may be gone on from, so it must be right at all times."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import psutil
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.protocol import Draft, Generation, Sampling
from agentrl.engine.sglang import SGLangEngine, sglang_engine
from agentrl.trajectory import TokenRecord
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
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


async def under_replies(
    engine: SGLangEngine, work: Callable[[], Awaitable[None]], seen: list[Reply], *, whole: list[Reply]
) -> None:
    """Do some work while replies are made. Note what is known of them meanwhile, and those that ended."""
    drafts: dict[int, tuple[list[int], Draft]] = {}

    async def converse(index: int) -> None:
        prompt = [1, 2, 3, 4 + index]
        watched = (lambda ids: None) if index % 2 else None  # a watched reply is streamed token by token
        while True:
            drafts[index] = prompt, (draft := Draft())
            sampling = Sampling(max_new_tokens=100)
            whole.append((prompt, await engine.generate(prompt, sampling, f"s{index}", watched, draft=draft)))

    async def look() -> None:
        while True:
            await anyio.sleep(0.01)
            for prompt, draft in drafts.values():
                if draft.so_far is not None and (known := draft.so_far()).output_ids:
                    seen.append((prompt, known))

    async with anyio.create_task_group() as group:
        for index in range(REPLIES):
            group.start_soon(converse, index)
        group.start_soon(look)
        await work()
        group.cancel_scope.cancel()


def sample_of(replies: list[Reply]) -> list[Reply]:
    unlike = {repr(reply): reply for reply in replies}
    return random.Random(0).sample(list(unlike.values()), min(MAX_CHECKED, len(unlike)))


async def test_tokens_that_arrive_after_a_weight_update_are_not_taken_for_tokens_of_the_new_weights(
    sglang_url: str, versions: list[Path]
) -> None:
    seen: list[Reply] = []
    whole: list[Reply] = []
    chance = random.Random(1)
    async with sglang_engine([sglang_url]) as engine:
        await engine.update_weights(versions[0], 0)

        async def update() -> None:
            for version in range(1, 1 + UPDATES):
                await anyio.sleep(chance.uniform(0.1, 0.4))
                process.suspend()
                await anyio.sleep(chance.uniform(0, 0.1))
                await engine.update_weights(versions[version % len(versions)], version)
                await anyio.sleep(chance.uniform(0, 0.1))
                process.resume()

        with detokenizer(sglang_url) as process:
            await under_replies(engine, update, seen, whole=whole)
        await engine.update_weights(versions[0], 0)
    assert any(len(generation.versions) > 1 for _, generation in whole), "no update interrupted a reply"
    assert len(sample_of(seen)) >= 20
    await assert_exact(sample_of(seen) + whole, [versions[v % len(versions)] for v in range(1 + UPDATES)])


async def test_a_reply_that_is_aborted_in_the_queue_goes_on_from_what_was_sent_of_it(
    sglang_url: str, versions: list[Path]
) -> None:
    seen: list[Reply] = []
    whole: list[Reply] = []
    async with sglang_engine([sglang_url]) as engine:
        await engine.update_weights(versions[0], 0)
        (server,) = engine.fleet.servers

        async def abort_queued() -> None:
            for _ in range(UPDATES):
                await anyio.sleep(0.2)
                await engine.pause("retract")  # puts all replies back into the queue
                await server.abort_all(10)
                await engine.resume()

        await under_replies(engine, abort_queued, seen, whole=whole)
        assert engine.fleet.bad_replies == engine.fleet.losses == 0
    assert whole
    await assert_exact(sample_of(seen) + whole, versions)
