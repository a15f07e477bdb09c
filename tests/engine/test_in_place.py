"""Pause mode `in_place`: replies that are open at a weight update keep their KV cache, and those that begin later have none of it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
SYSTEM_PROMPT = [3 + number % 90 for number in range(300)]


async def test_a_reply_that_begins_after_an_update_is_of_its_weights_alone(
    any_server_url: str, versions: list[Path]
) -> None:
    """All prompts begin alike, as with a system prompt, which a cache keeps for as long as somebody asks for it."""
    late: list[tuple[list[int], Generation]] = []
    async with sglang_engine([any_server_url], pause_mode="in_place") as engine:
        await engine.update_weights(versions[0], 0)
        (server,) = engine.fleet.servers

        async def reply(number: int, tokens: int) -> tuple[list[int], Generation]:
            prompt = [*SYSTEM_PROMPT, 5 + number]
            return prompt, await engine.generate(prompt, Sampling(max_new_tokens=tokens), f"s{number}")

        async with anyio.create_task_group() as open_replies:
            for number in range(4):
                open_replies.start_soon(reply, number, 600)
            await wait_until(lambda: server.in_flight == 4, 60)
            await anyio.sleep(0.3)
            for version in (1, 2):
                await engine.update_weights(versions[version], version)
                for number in range(3):
                    late.append(await reply(10 * version + number, 20))
            open_replies.cancel_scope.cancel()
    async with sglang_engine([any_server_url], pause_mode="retract") as engine:
        await engine.update_weights(versions[0], 0)
    record = TokenRecord()
    for prompt, generation in late:
        assert len(generation.versions) == 1
        record.add("id", None, prompt, generation, 1.0)
    assert {generation.versions[0].version for _, generation in late} == {1, 2}
    assert await in_thread(lambda: Rescorer(versions).largest_difference(record)) < 1e-4
