"""How to hold a server's partial replies, so that another can go on from them when it dies: stream, or ask in segments?

    python benchmarks/partial_replies.py [--engine sglang] [--replies 32] [--tokens 512]

`plain` waits for whole replies and loses them with the server; `stream K` gets every K-th token's state as it comes; `segments K`
asks for K tokens at a time. Speeds are of one run, one after the other, twice; the ratio to `plain` is what counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pydantic_core

import agentrl.workflows
from agentrl.config import EngineConfig, load_config
from agentrl.engine.launch import local_servers
from agentrl.models import NANO


async def reply(http: aiohttp.ClientSession, url: str, index: int, tokens: int, how: str, every: int) -> int:
    """Generate one reply; its number of tokens."""
    ids: list[int] = []
    prompt = [1, 2, 3, 4 + index]

    async def ask(count: int, **more: Any) -> None:
        params = {"max_new_tokens": count, "ignore_eos": True, **({"stream_interval": every} if more else {})}
        body = {"input_ids": prompt + ids, "sampling_params": params, "return_logprob": True, **more}
        async with http.post(f"{url}/generate", data=pydantic_core.to_json(body)) as response:
            if not more:
                ids.extend(pydantic_core.from_json(await response.read())["output_ids"])
            else:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        ids.extend(pydantic_core.from_json(line[6:])["output_ids"])

    if how == "stream":
        await ask(tokens, stream=True)
    while len(ids) < tokens:
        await ask(min(every, tokens - len(ids)) if how == "segments" else tokens)
    return len(ids)


async def main() -> None:
    """Print one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="sglang", choices=["embedded", "sglang"])
    parser.add_argument("--replies", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    config = EngineConfig()
    if args.engine == "sglang":
        config = load_config(Path(agentrl.workflows.__path__[0]) / "sglang_cpu.toml").engine
    config = config.model_copy(update={"servers": 1})
    ways = [("plain", 0), *[("stream", k) for k in (1, 8, 32, 64)], *[("segments", k) for k in (32, 64)]]
    connector = aiohttp.TCPConnector(limit=0)
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            local_servers(NANO, config, log=Path(scratch) / "engine.log") as (server,),
            aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as http,
        ):
            for repeat in range(2):
                plain = 0.0
                for how, every in ways:
                    counts: list[int] = []

                    async def one(index: int, how: str, every: int, counts: list[int]) -> None:
                        counts.append(await reply(http, server.url, index, args.tokens, how, every))

                    cpu, started = time.process_time(), time.perf_counter()
                    async with anyio.create_task_group() as group:
                        for index in range(args.replies):
                            group.start_soon(one, index, how, every, counts)
                    speed = sum(counts) / (time.perf_counter() - started)
                    plain = plain or speed
                    print(
                        f"run {repeat + 1}  {how:>8} {every or '':>3}  {speed:7.0f} tokens/s  {speed / plain:5.2f} of plain"
                        f"  client CPU {time.process_time() - cpu:.2f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    anyio.run(main)
