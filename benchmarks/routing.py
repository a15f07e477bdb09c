"""What sticky routing saves: the share of prompt tokens that come from a prefix cache, on two servers.

    python benchmarks/routing.py [--engine sglang] [--sessions 32] [--turns 12]

Sessions of many turns, all at once; each turn's prompt is the whole conversation so far. `sticky` is agentrl's router, `random`
chooses a server for every call. Both run against the same two servers, with conversations that differ between them.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

import agentrl.workflows
from agentrl.config import EngineConfig, load_config
from agentrl.engine.client import SGLangEngine
from agentrl.engine.client.fleet import Router
from agentrl.engine.client.server import SGLangServer
from agentrl.engine.launch import launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.models import NANO


class RandomRouter(Router):
    """Any server, every time."""

    def choose(self, session: str, servers: Sequence[SGLangServer]) -> SGLangServer:
        return random.choice(servers)


async def workload(engine: SGLangEngine, first: int, sessions: int, turns: int) -> tuple[float, float]:
    """Play the sessions; the share of prompt tokens that were cached, and seconds."""
    prompts = cached = 0

    async def play(session: int) -> None:
        nonlocal prompts, cached
        ids = [1, 3 + session % 400, 3 + session // 400, 7, 8, 9]
        for turn in range(turns):
            ids += [(session * 7 + turn * 3 + k) % 400 + 5 for k in range(20)]
            generation = await engine.generate(ids, Sampling(max_new_tokens=20), f"s{session}")
            prompts += len(ids)
            cached += generation.cached_tokens
            ids = ids + generation.output_ids
        engine.end_session(f"s{session}")

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for session in range(first, first + sessions):
            group.start_soon(play, session)
    return cached / prompts, time.perf_counter() - started


async def main() -> None:
    """Print one line a router, twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="sglang", choices=["embedded", "sglang"])
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    config = EngineConfig(servers=2)
    if args.engine == "sglang":
        config = load_config(Path(agentrl.workflows.__path__[0]) / "sglang_cpu.toml").engine
    with tempfile.TemporaryDirectory() as scratch:
        async with launch_engine(NANO, config, log=Path(scratch) / "engine.log") as engine:
            sticky, first = engine.fleet.router, 0
            for _ in range(2):
                for name, router in (("sticky", sticky), ("random", RandomRouter(0))):
                    engine.fleet.router = router
                    share, seconds = await workload(engine, first, args.sessions, args.turns)
                    first += args.sessions
                    print(f"{name:>7}: {share:6.1%} of prompt tokens cached, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    anyio.run(main)
