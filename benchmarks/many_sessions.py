"""A thousand sessions at the same time on one core: what the proxy adds in memory and time.

    taskset -c 0 python benchmarks/many_sessions.py [--sessions 1000] [--turns 3]

The engine is a real embedded server, pinned to the other cores where there are some; the sessions reach the proxy inside this
process without a client library, so that what is measured is the proxy. Memory is this process's resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import psutil

from agentrl.config import EngineConfig
from agentrl.engine.launch import launch_engine
from agentrl.models import NANO
from agentrl.proxy import load_chat_format, open_proxy


async def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    own = psutil.Process()
    cores = own.cpu_affinity()
    with tempfile.TemporaryDirectory() as scratch:
        config = EngineConfig(flags={"max-total-tokens": 400_000})
        async with launch_engine(NANO, config, log=Path(scratch) / "engine.log") as engine:
            others = sorted(set(range(os.cpu_count() or 1)) - set(cores))
            for child in own.children():
                child.cpu_affinity(others or cores)
            async with open_proxy(engine, load_chat_format(NANO), "nano") as proxy:
                waits: list[float] = []
                lags: list[float] = []

                async def play(index: int) -> None:
                    session = proxy.open_session()
                    headers = {"authorization": f"Bearer {session.key}"}
                    messages = [{"role": "user", "content": f"{index} + {index} ="}]
                    for _ in range(args.turns):
                        body = json.dumps({"model": "nano", "messages": messages, "max_tokens": 12}).encode()
                        started = time.perf_counter()
                        reply = await proxy.handle("POST", "/v1/chat/completions", headers, body)
                        waits.append(time.perf_counter() - started)
                        assert reply.status == 200, reply.body
                        said = json.loads(reply.body)["choices"][0]["message"]
                        messages += [
                            {"role": "assistant", "content": said["content"]},
                            {"role": "user", "content": "1"},
                        ]
                    sessions.append(session)

                async def watch_loop() -> None:
                    while True:
                        started = time.perf_counter()
                        await anyio.sleep(0.01)
                        lags.append(time.perf_counter() - started - 0.01)

                for round_ in ("one session", "all sessions"):
                    sessions: list[object] = []
                    waits.clear()
                    lags.clear()
                    before, cpu, started = own.memory_info().rss, time.process_time(), time.perf_counter()
                    async with anyio.create_task_group() as watching:
                        watching.start_soon(watch_loop)
                        async with anyio.create_task_group() as group:
                            for index in range(1 if round_ == "one session" else args.sessions):
                                group.start_soon(play, index)
                        watching.cancel_scope.cancel()
                    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
                    waits.sort()
                    lags.sort()
                    print(
                        f"{round_}: {len(waits)} calls in {wall:.2f} s; call median {1000 * statistics.median(waits):.1f} ms, "
                        f"p99 {1000 * waits[int(0.99 * len(waits))]:.1f} ms; proxy CPU {1000 * cpu / len(waits):.2f} ms a call; "
                        f"event-loop lag p99 {1000 * lags[int(0.99 * len(lags))]:.1f} ms; "
                        f"{(own.memory_info().rss - before) / len(sessions) / 1000:.1f} kB a session",
                        flush=True,
                    )


if __name__ == "__main__":
    anyio.run(main)
