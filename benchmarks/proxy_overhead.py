"""What the proxy adds to a chat completion: `python benchmarks/proxy_overhead.py`.

An engine stub in a process of its own answers every `/generate` at once with the same reply of 128 tokens and their
logprobs. Against it run episodes, 1, 32 or 256 at a time, of three-turn conversations with a tool, or of one plain message:

    engine   SGLangEngine.generate alone
    proxy    the same through Proxy.handle: checked, rendered, recorded, answered as JSON
    client   the unmodified openai client alone, on a transport that answers at once
    openai   the openai client, the proxy and the engine: what `episode.client` does

Latency is measured with pauses between calls, as environments make them, so that this one process is busy a fraction of the
time; calls a second without pauses, where latency would only say how long the queue is. `added` is over the engine's own
median at the same concurrency. With OTEL_EXPORTER_OTLP_ENDPOINT set, each call is traced.

Last comes the CPU time of a call, all threads of this process, at turns 1, 10 and 50 of one conversation: the figure that other
work on the machine changes least. To compare two trees, run `--by-turn`, which measures that alone, in each in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import anyio
import httpx2
import openai
from aiohttp import web

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.envs.calculator_env import TOOL
from agentrl.models import NANO
from agentrl.proxy import Proxy, load_chat_format, open_proxy
from agentrl.proxy.http_messages import InProcessTransport
from agentrl.rollout.run_episode import IN_PROCESS_URL
from agentrl.system.traces import begin_traces

REPLY_TOKENS = 128
TURNS = 3
USER = {"role": "user", "content": "State the final answer to the following arithmetic problem: 12 + 30 ="}
TURNS_MEASURED = (1, 10, 50)
"""Turns of one conversation at which the CPU of a call is measured."""
PACED_CALLS_PER_S = 150
"""Load of the latency measurement, over all episodes."""


async def serve_stub() -> None:
    """The stub: `GET /model_info`, `GET /server_info`, `GET /health`, and `POST /generate` with a fixed reply, whole or in one event of a stream.

    The reply is cut where fewer tokens are asked for, as the probe of a server does.
    """
    ids = [24 + i % 10 for i in range(REPLY_TOKENS - 1)] + [2]

    @cache
    def reply(count: int) -> str:
        """All of a reply of `count` tokens but the end of its JSON."""
        ended = count == REPLY_TOKENS
        meta = {
            "finish_reason": {"type": "stop", "matched": 2} if ended else {"type": "length", "length": count},
            "completion_tokens": count,
            "weight_version": "0",
            "weight_versions": [{"version": "0", "start": 0, "end": count}],
            "output_token_logprobs": [[-0.12345678 - 0.001 * i, token, None] for i, token in enumerate(ids[:count])],
        }
        return json.dumps({"text": "", "output_ids": ids[:count], "meta_info": meta}).removesuffix("}}")

    async def generate(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        rest = reply(min(REPLY_TOKENS, asked["sampling_params"].get("max_new_tokens", REPLY_TOKENS)))
        state = f'{rest}, "prompt_tokens": {len(asked["input_ids"])}}}}}'
        if asked.get("stream"):
            return web.Response(text=f"data: {state}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.Response(text=state, content_type="application/json")

    async def model_info(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": "0"})

    async def server_info(_: web.Request) -> web.Response:
        return web.json_response({})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes(
        [
            web.post("/generate", generate),
            web.get("/model_info", model_info),
            web.get("/server_info", server_info),
            web.get("/health", health),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@dataclass
class Measured:
    """Times of single calls, and how many there were a second."""

    times_s: list[float]
    calls_per_s: float
    cpu_ms: float
    """CPU time of this process for one of them."""

    @property
    def median_ms(self) -> float:
        return 1000 * statistics.median(self.times_s)

    @property
    def p99_ms(self) -> float:
        return 1000 * sorted(self.times_s)[int(0.99 * (len(self.times_s) - 1))]


class Timer:
    """Times calls; pauses before each for a random time around `pause_s`."""

    def __init__(self, pause_s: float) -> None:
        self.times_s: list[float] = []
        self._pause_s = pause_s
        self._random = random.Random(0)

    async def __call__(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self._pause_s:
            await anyio.sleep(self._random.uniform(0, 2 * self._pause_s))
        started = time.perf_counter()
        result = await call()
        self.times_s.append(time.perf_counter() - started)
        return result


Timed = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes a call and measures it."""
Episode = Callable[[Timed], Awaitable[None]]


async def measure(episode: Episode, concurrent: int, seconds: float, pause_s: float) -> Measured:
    """Run episodes, so many at a time, for so long."""
    timer = Timer(pause_s)
    started, cpu_started = time.perf_counter(), time.process_time()

    async def loop() -> None:
        await episode(timer)  # once even where the machine has no time for it
        while time.perf_counter() < started + seconds:
            await episode(timer)

    async with anyio.create_task_group() as group:
        for _ in range(concurrent):
            group.start_soon(loop)
    calls, cpu_s = len(timer.times_s), time.process_time() - cpu_started
    return Measured(timer.times_s, calls / (time.perf_counter() - started), 1000 * cpu_s / calls)


async def cpu_by_turn(episode: Episode, conversations: int) -> dict[int, float]:
    """Return the median CPU milliseconds of a call by its turn, in episodes that run one after the other."""
    by_turn: list[list[float]] = []
    for _ in range(conversations + 1):
        used_ms: list[float] = []

        async def timed(call: Callable[[], Awaitable[Any]], used_ms: list[float] = used_ms) -> Any:
            started = time.process_time()
            result = await call()
            used_ms.append(1000 * (time.process_time() - started))
            return result

        await episode(timed)
        by_turn.append(used_ms)
    return {turn: statistics.median(used_ms[turn - 1] for used_ms in by_turn[1:]) for turn in TURNS_MEASURED}


class InstantTransport(httpx2.AsyncBaseTransport):
    """Answers every request with one recorded reply."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return httpx2.Response(200, headers={"Content-Type": "application/json"}, content=self._body)


def episodes(
    engine: SGLangEngine,
    proxy: Proxy,
    http: httpx2.AsyncClient,
    instant: httpx2.AsyncClient,
    *,
    turns: int,
    tools: bool,
) -> dict[str, Episode]:
    """The four ways to make the calls of one episode."""
    options: dict[str, Any] = {"tools": [TOOL]} if tools else {}
    prompt = proxy.chat_format.render([USER], options.get("tools")).ids

    async def through_engine(timed: Timed) -> None:
        for turn in range(turns):
            ids = prompt + [30] * (140 * turn)
            sampling = Sampling(max_new_tokens=REPLY_TOKENS, stop_token_ids=[2])
            await timed(lambda ids=ids, sampling=sampling: engine.generate(ids, sampling, "s"))  # type: ignore[misc]

    async def through_proxy(timed: Timed) -> None:
        session = proxy.open_session()
        messages: list[Any] = [USER]
        for _ in range(turns):
            body = json.dumps({"model": "nano", "messages": messages, **options}).encode()
            headers = {"authorization": f"Bearer {session.key}"}
            reply = await timed(partial(proxy.handle, "POST", "/v1/chat/completions", headers, body))
            messages = [*messages, json.loads(reply.body)["choices"][0]["message"], USER]
        proxy.close_session(session)

    def through_client(http: httpx2.AsyncClient) -> Episode:
        root = openai.AsyncOpenAI(api_key="-", base_url=IN_PROCESS_URL, http_client=http, max_retries=0)

        async def episode(timed: Timed) -> None:
            session = proxy.open_session()
            create = root.with_options(api_key=session.key).chat.completions.create
            messages: list[Any] = [USER]
            for _ in range(turns):
                reply = await timed(lambda messages=messages: create(model="nano", messages=messages, **options))  # type: ignore[misc]
                messages = [*messages, reply.choices[0].message, USER]
            proxy.close_session(session)

        return episode

    return {
        "engine": through_engine,
        "proxy": through_proxy,
        "client": through_client(instant),
        "openai": through_client(http),
    }


async def memory_per_call(proxy: Proxy, concurrent: int) -> float:
    """Bytes of Python memory a call in flight: many calls opened against an engine that is paused on our side."""
    engine = proxy.engine
    assert isinstance(engine, SGLangEngine)
    engine.fleet.running = anyio.Event()
    sessions = [proxy.open_session() for _ in range(concurrent)]
    body = json.dumps({"model": "nano", "messages": [USER], "tools": [TOOL]}).encode()

    async def ask(key: str) -> None:
        reply = await proxy.handle("POST", "/v1/chat/completions", {"authorization": f"Bearer {key}"}, body)
        if reply.status != 200:
            raise RuntimeError(reply.body)

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(ask, session.key)
        await anyio.sleep(1)
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        engine.fleet.running.set()
    for session in sessions:
        proxy.close_session(session)
    return used / concurrent


@asynccontextmanager
async def stub_url() -> AsyncIterator[str]:
    """Run the stub in a process of its own for the length of the context, which yields its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--stub"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait(10)


async def main(seconds: float, conversations: int, by_turn_only: bool, as_json: bool) -> None:
    """Start the stub, measure, print."""
    gc.set_threshold(50_000)  # as in the main process of a run
    chat_format = replace(load_chat_format(NANO), context_length=2**17)
    found: dict[str, Any] = {}
    async with (
        stub_url() as url,
        sglang_engine([url]) as engine,
        open_proxy(engine, chat_format, "nano") as proxy,
    ):
        session = proxy.open_session()
        body = json.dumps({"model": "nano", "messages": [USER]}).encode()
        reply = await proxy.handle("POST", "/v1/chat/completions", {"authorization": f"Bearer {session.key}"}, body)
        async with (
            httpx2.AsyncClient(transport=InProcessTransport(proxy.handle), base_url=IN_PROCESS_URL) as http,
            httpx2.AsyncClient(transport=InstantTransport(reply.body), base_url=IN_PROCESS_URL) as instant,
        ):
            ways = partial(episodes, engine, proxy, http, instant)
            if not by_turn_only:
                plain, with_tool = ways(turns=1, tools=False), ways(turns=3, tools=True)
                found["one plain message"] = await latencies(plain, seconds)
                found["three turns with a tool"] = await latencies(with_tool, seconds)
                found["bytes of a call in flight"] = await memory_per_call(proxy, 256)
            found["cpu ms by turn"] = {
                name: await cpu_by_turn(episode, conversations)
                for name, episode in ways(turns=max(TURNS_MEASURED), tools=True).items()
            }
    print(json.dumps(found) if as_json else tables(found))


async def latencies(ways: dict[str, Episode], seconds: float) -> list[dict[str, Any]]:
    """Return one row for each way and number of episodes at once."""
    rows = []
    for concurrent in (1, 32, 256):
        base_ms = 0.0
        for name, episode in ways.items():
            await measure(episode, concurrent, 0.3, 0.0)
            paced = await measure(episode, concurrent, seconds, concurrent / PACED_CALLS_PER_S)
            flat_out = await measure(episode, concurrent, seconds, 0.0)
            base_ms = base_ms or paced.median_ms
            row: dict[str, Any] = {
                "at once": concurrent,
                "way": name,
                "median ms": paced.median_ms,
                "p99 ms": paced.p99_ms,
            }
            row["added ms"] = None if name == "client" else paced.median_ms - base_ms
            rows.append({**row, "calls/s": flat_out.calls_per_s, "cpu ms": flat_out.cpu_ms})
    return rows


def tables(found: dict[str, Any]) -> str:
    """Return what was found, for people."""
    lines = []
    for kind in ("one plain message", "three turns with a tool"):
        if kind in found:
            lines += [kind, "at once     way  median ms  p99 ms  added ms  calls/s  cpu ms"]
        for row in found.get(kind, ()):
            added = "" if row["added ms"] is None else f"{row['added ms']:.3f}"
            lines.append(
                f"{row['at once']:>7} {row['way']:>7} {row['median ms']:>10.3f} {row['p99 ms']:>7.2f} {added:>9} "
                f"{row['calls/s']:>8.0f} {row['cpu ms']:>7.3f}"
            )
    if "bytes of a call in flight" in found:
        lines.append(f"memory of a call in flight: {found['bytes of a call in flight'] / 1000:.1f} kB")
    lines.append("CPU ms of a call at turn" + "".join(f"{turn:>8}" for turn in TURNS_MEASURED))
    for name, by_turn in found["cpu ms by turn"].items():
        lines.append(f"{name:>24}" + "".join(f"{by_turn[turn]:>8.3f}" for turn in TURNS_MEASURED))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--conversations", type=int, default=5, help="of which the CPU of a call is the median")
    parser.add_argument("--by-turn", action="store_true", help="measure the CPU of a call by its turn alone")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--stub", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    begin_traces()
    asyncio.run(serve_stub()) if args.stub else anyio.run(
        main, args.seconds, args.conversations, args.by_turn, args.json
    )
