"""Tokens a second of the embedded engine beside those of transformers' own continuous batching, alone and over HTTP, in turn.

    python benchmarks/embedded_engine.py [--sequences 16 64] [--prompt 64] [--tokens 128] [--rounds 5] [--model nano]

Each of the three gives every prompt a reply of `--tokens` tokens, drawn at temperature 1, with a logprob of each; no two prompts begin
alike. Over HTTP a process of its own serves, and its requests stream as agentrl's engine asks. Of `--rounds` rounds the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psutil
import torch
from anyio.from_thread import start_blocking_portal
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from agentrl.engine.client.server import STREAM_INTERVAL_TOKENS
from agentrl.engine.embedded.batching import BatchingEngine
from agentrl.engine.embedded.sampling import Request
from agentrl.engine.protocol import Sampling
from agentrl.models import model_directory

CACHE_TOKENS = 65_536
Prompts = list[list[int]]
Generate = Callable[[Prompts, int], None]
CpuSeconds = Callable[[], float]


def prompts_of(count: int, length: int, vocabulary: int) -> Prompts:
    """Prompts that begin each its own way."""
    return [[(7 * number + 13 * index) % (vocabulary - 9) + 9 for index in range(length)] for number in range(count)]


@contextmanager
def transformers_loop(model_path: Path) -> Iterator[tuple[Generate, CpuSeconds]]:
    """Transformers' continuous batching with its own sampling."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=True, eos_token_id=-1, max_new_tokens=64),  # type: ignore[no-untyped-call]
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16,
            num_blocks=CACHE_TOKENS // 16,
            max_batch_tokens=2048,
            use_cuda_graph=False,
            use_async_batching=False,
            auto_switch_to_flash=False,
            max_blocks_per_request=0,
            return_logprobs=True,
        ),
    )

    def generate(prompts: Prompts, tokens: int) -> None:
        for prompt in prompts:
            manager.add_request(prompt, max_new_tokens=tokens)
        ended = 0
        while ended < len(prompts):
            reply = manager.get_result(timeout=1)
            if reply is not None:
                assert len(reply.generated_tokens) == len(reply.logprobs) == tokens
                ended += 1

    manager.start()
    try:
        yield generate, time.process_time
    finally:
        manager.stop(block=True, timeout=10)


@contextmanager
def batching_engine(model_path: Path) -> Iterator[tuple[Generate, CpuSeconds]]:
    """The embedded engine without its server."""
    engine = BatchingEngine(model_path, max_total_tokens=CACHE_TOKENS)

    async def replies(prompts: Prompts, tokens: int) -> None:
        ended = [anyio.Event() for _ in prompts]
        sampling = Sampling(max_new_tokens=tokens)
        requests = [Request(prompt, sampling, event.set) for prompt, event in zip(prompts, ended, strict=True)]
        for request in requests:
            engine.submit(request)
        for event in ended:
            await event.wait()
        assert all(len(request.logprobs) == tokens for request in requests)

    with start_blocking_portal() as portal:
        run = portal.start_task_soon(engine.run)
        yield lambda prompts, tokens: portal.call(replies, prompts, tokens), time.process_time
        run.cancel()


@contextmanager
def embedded_server(model_path: Path) -> Iterator[tuple[Generate, CpuSeconds]]:
    """The embedded engine over HTTP; the CPU time is its process's."""
    command = [sys.executable, "-m", "agentrl.engine.embedded", f"--model-path={model_path}", "--exit-with-stdin"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().split()[-1]}/generate"

        async def reply(http: aiohttp.ClientSession, prompt: list[int], tokens: int) -> None:
            params = {"max_new_tokens": tokens, "ignore_eos": True, "stream_interval": STREAM_INTERVAL_TOKENS}
            body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "stream": True}
            count = 0
            async with http.post(url, json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        count += len(json.loads(line.removeprefix(b"data: "))["output_ids"])
            assert count == tokens

        async def all_replies(prompts: Prompts, tokens: int) -> None:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as group:
                for prompt in prompts:
                    group.create_task(reply(http, prompt, tokens))

        def cpu_seconds() -> float:
            times = psutil.Process(process.pid).cpu_times()
            return float(times.user + times.system)

        yield lambda prompts, tokens: asyncio.run(all_replies(prompts, tokens)), cpu_seconds


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64], help="replies at the same time")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="nano")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model_path = Path(model_directory(args.model))
    kinds = {"transformers": transformers_loop, "engine": batching_engine, "server": embedded_server}
    with ExitStack() as stack:
        opened = {kind: stack.enter_context(open_kind(model_path)) for kind, open_kind in kinds.items()}
        for count in args.sequences:
            prompts = prompts_of(count, args.prompt, 400)
            speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
            costs: dict[str, list[float]] = {kind: [] for kind in kinds}
            for measured in [False] + [True] * args.rounds:
                for kind, (generate, cpu_seconds) in opened.items():
                    cpu, wall = cpu_seconds(), time.perf_counter()
                    generate(prompts, args.tokens)
                    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
                    if measured:
                        speeds[kind].append(count * args.tokens / wall)
                        costs[kind].append(1000 * cpu / (count * args.tokens))
            theirs = statistics.median(speeds["transformers"])
            for kind in kinds:
                speed, cost = statistics.median(speeds[kind]), statistics.median(costs[kind])
                print(
                    f"{count:>4} replies  {kind:<12}  {speed:>7,.0f} tokens/s  {speed / theirs:.2f} of transformers'  "
                    f"{cost:.3f} s of CPU per 1,000 tokens",
                    flush=True,
                )


if __name__ == "__main__":
    main()
