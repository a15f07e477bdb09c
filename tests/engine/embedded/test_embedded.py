"""What the embedded server does where SGLang does it on a GPU alone, or answers worse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from agentrl.models import NANO
from tests.engine.test_contract import Server, stream_request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(server_url: str) -> AsyncIterator[Server]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        yield Server(http, server_url)


async def test_a_seed_repeats_a_reply_whatever_else_runs(server: Server) -> None:
    first = await server.generate(sampling_seed=7, max_new_tokens=20)
    replies: list[Any] = []

    async def again(seed: int | None) -> None:
        reply = await server.generate(sampling_seed=seed, max_new_tokens=20)
        if seed == 7:
            replies.append(reply)

    async with anyio.create_task_group() as group:
        for seed in (None, 7, 8, 7):
            group.start_soon(again, seed)
    assert [reply["output_ids"] for reply in replies] == [first["output_ids"]] * 2
    assert (await server.generate(sampling_seed=8, max_new_tokens=20))["output_ids"] != first["output_ids"]


async def test_in_place_refuses_to_flush_the_cache_of_open_replies(server: Server, versions: list[Path]) -> None:
    replies: list[Any] = []
    async with anyio.create_task_group() as group:
        await group.start(stream_request, server, replies, "flush", 300)
        await server.post("/pause_generation", {"mode": "in_place"})
        update = {"model_path": str(versions[0]), "flush_cache": True}
        refused = await server.post("/update_weights_from_disk", update, status=400)
        assert refused["success"] is False
        assert "in_place" in refused["message"]
        await server.post("/continue_generation", {})
    assert len(replies[0]["output_ids"]) == 300


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [1], "sampling_params": {"typical_p": 0.5}}, "typical_p"),
        ({"input_ids": [99_999]}, "99999"),
    ],
)
async def test_a_bad_request_is_refused_by_name(server: Server, body: dict[str, Any], named: str) -> None:
    refused = await server.post("/generate", body, status=400)
    assert named in refused["error"]["message"]


@pytest.mark.soak
def test_a_server_whose_starter_dies_while_it_starts_ends_too() -> None:
    """Nobody reads that it listens, and nobody holds its standard input."""
    command = [sys.executable, "-m", "agentrl.engine.embedded", f"--model-path={NANO}", "--exit-with-stdin"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
