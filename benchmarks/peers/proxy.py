"""What a recording proxy adds to a chat completion, agentrl's and others': `python benchmarks/peers/proxy.py`.

A stub in a process of its own answers at once, with token ids and logprobs. The same raw HTTP client asks it directly, and through each proxy,
which is a process of its own in its own environment, with one worker:

    agentrl              renders the prompt, asks an SGLang server, records every token and logprob
    rllm-model-gateway   rLLM's gateway, with its store in memory
    agentlightning       Agent Lightning's `LLMProxy`, over LiteLLM, with its store in memory
    litellm              LiteLLM's proxy alone, which records no tokens

Each connection asks again as soon as it is answered: with one, latency is that of a call; with many, also that of the queue. Added is what is
beyond the direct call at as many connections. CPU is that of the proxy's process. A session (rLLM), an attempt (Agent Lightning) or a key
(agentrl) is used for five calls. Proxies are measured in turn, in rounds, each started anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROXIES = {
    "agentrl": "agentrl",
    "rllm-model-gateway": "rllm-model-gateway",
    "agentlightning": "agentlightning",
    "litellm": "litellm",
}
"""Proxies, each with the name of its environment."""
CONNECTIONS = (1, 32, 256)
SESSIONS = 4000
CALLS_A_SESSION = 5
START_S = 180
MODEL = "nano"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "What is 20 + 22?"}], "tools": [TOOL]}


@dataclass
class Endpoint:
    """Where chat completions are asked for. `{session}` in the URL is a number."""

    url: str
    keys: list[str] = field(default_factory=lambda: ["-"])
    pid: int | None = None
    calls: int = 0
    refusal: str = ""
    """Why the last call came to nothing."""

    def next(self) -> tuple[str, str]:
        """Return the URL and the key of the next call."""
        session = self.calls // CALLS_A_SESSION % SESSIONS
        self.calls += 1
        return self.url.format(session=session), self.keys[session % len(self.keys)]

    def cpu_s(self) -> float:
        """Return the CPU seconds of the proxy's processes."""
        import psutil

        if self.pid is None:
            return 0.0
        parent = psutil.Process(self.pid)
        return sum(sum(process.cpu_times()[:2]) for process in [parent, *parent.children(recursive=True)])


async def serve_agentrl(url: str, port: int) -> None:
    """Be agentrl's proxy, and print its sessions' keys."""
    from agentrl.engine.client import sglang_engine
    from agentrl.models import NANO
    from agentrl.proxy import ProxyLimits, load_chat_format, open_proxy

    limits = ProxyLimits(max_sessions=2 * SESSIONS)
    async with (
        sglang_engine([url]) as engine,
        open_proxy(engine, load_chat_format(NANO), MODEL, port=port, limits=limits) as proxy,
    ):
        print(json.dumps([proxy.open_session().key for _ in range(SESSIONS)]), flush=True)
        await asyncio.Event().wait()


async def serve_agentlightning(url: str, port: int) -> None:
    """Be Agent Lightning's."""
    from agentlightning import InMemoryLightningStore, LLMProxy

    params = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "-"}
    models = [{"model_name": MODEL, "litellm_params": params}]
    store = InMemoryLightningStore(thread_safe=True)
    await LLMProxy(port=port, host="127.0.0.1", model_list=models, store=store, launch_mode="thread").start()
    print("[]", flush=True)
    await asyncio.Event().wait()


def command_of(name: str, python: Path, url: str, port: int, folder: Path) -> tuple[list[str], str]:
    """Return the command of a proxy, and the path of its endpoint."""
    if name == "litellm":
        params = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "-"}
        settings = folder / "litellm.yaml"
        settings.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
        words = ["--config", str(settings), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        return [str(python.parent / "litellm"), *words], "/v1"
    if name == "rllm-model-gateway":
        words = ["--host", "127.0.0.1", "--port", str(port), "--worker", f"{url}/v1", "--store", "memory"]
        return [str(python.parent / name), *words, "--log-level", "WARNING"], "/sessions/s{session}/v1"
    path = "/v1" if name == "agentrl" else "/rollout/r{session}/attempt/a{session}/v1"
    return [str(python), __file__, "--serve", name, "--url", url, "--port", str(port)], path


@asynccontextmanager
async def started(name: str, python: Path, url: str) -> AsyncIterator[Endpoint]:
    """Run a proxy for the length of the context.

    Raises:
        RuntimeError: It does not answer.
    """
    import aiohttp

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # LiteLLM starts without a key where it is told that it may, and asks the network for nothing.
    keys = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command, path = command_of(name, python, url, port, Path(folder))
        with (
            (Path(folder) / "printed").open("w+") as printed,
            subprocess.Popen(command, stdout=printed, stderr=printed, cwd=folder, env=os.environ | keys) as process,
        ):
            try:
                endpoint = Endpoint(f"http://127.0.0.1:{port}{path}/chat/completions", pid=process.pid)
                async with aiohttp.ClientSession() as http:
                    deadline = time.monotonic() + START_S
                    while not await answers(http, endpoint, Path(folder) / "printed", name):
                        if process.poll() is not None or time.monotonic() > deadline:
                            said = (Path(folder) / "printed").read_text()[-3000:]
                            raise RuntimeError(f"{name} does not answer: {endpoint.refusal}; {said}")
                        await asyncio.sleep(0.5)
                yield endpoint
            finally:
                process.kill()


async def answers(http: Any, endpoint: Endpoint, printed: Path, name: str) -> bool:
    """Return whether a proxy answers yet; take note of the keys that agentrl's prints."""
    import aiohttp

    if name == "agentrl":
        lines = [line for line in printed.read_text().splitlines() if line.startswith("[")]
        if not lines:
            return False
        endpoint.keys = json.loads(lines[-1])
    try:
        await ask(http, endpoint)
    except (aiohttp.ClientError, RuntimeError) as error:
        endpoint.refusal = str(error)
        return False
    return True


async def ask(http: Any, endpoint: Endpoint) -> float:
    """Make one call; return its seconds.

    Raises:
        RuntimeError: It was refused.
    """
    url, key = endpoint.next()
    begun = time.perf_counter()
    async with http.post(url, json=BODY, headers={"Authorization": f"Bearer {key}"}) as reply:
        body = await reply.read()
    seconds = time.perf_counter() - begun
    if reply.status != 200 or b'"tool_calls"' not in body:
        raise RuntimeError(f"{url} answered {reply.status}: {body[:500]!r}")
    return seconds


async def measure(endpoint: Endpoint, connections: int, seconds: float) -> dict[str, float]:
    """Measure one endpoint at so many connections."""
    import aiohttp

    async def loop(until: float) -> list[float]:
        taken = [await ask(http, endpoint)]
        while time.perf_counter() < until:
            taken.append(await ask(http, endpoint))
        return taken

    async def all_of(seconds: float) -> list[float]:
        loops = [loop(time.perf_counter() + seconds) for _ in range(connections)]
        return sorted(one for taken in await asyncio.gather(*loops) for one in taken)

    timeout = aiohttp.ClientTimeout(total=600)
    # uvicorn closes a connection that was idle for 5 s, and a call that meets that fails.
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=3)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        await all_of(min(1.0, seconds))  # connections are made
        begun, cpu_begun = time.perf_counter(), endpoint.cpu_s()
        times_s = await all_of(seconds)
        return {
            "median_ms": 1000 * statistics.median(times_s),
            "p99_ms": 1000 * times_s[int(0.99 * (len(times_s) - 1))],
            "calls_per_s": len(times_s) / (time.perf_counter() - begun),
            "cpu_ms": 1000 * (endpoint.cpu_s() - cpu_begun) / len(times_s),
        }


async def main(only: list[str], seconds: float, rounds: int) -> None:
    """Measure the stub and each proxy in turn, in rounds; print a table."""
    from installed import absent, head, interpreter, spread
    from stub_server import stub_server

    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    failed: dict[str, str] = {}

    async def note(name: str, endpoint: Endpoint) -> None:
        for connections in CONNECTIONS:
            row = await measure(endpoint, connections, seconds)
            found.setdefault((name, connections), []).append(row)
            print(name, connections, row, file=sys.stderr, flush=True)

    print(head(sorted(set(PROXIES.values()))))
    print(f"{seconds:g} s at each number of connections; rounds: {rounds}, median (range)\n")
    with stub_server(0) as url:
        for _ in range(rounds):
            await note("direct", Endpoint(f"{url}/v1/chat/completions"))
            for name in only:
                if (python := interpreter(PROXIES[name])) and name not in failed:
                    try:
                        async with started(name, python, url) as endpoint:
                            await note(name, endpoint)
                    except RuntimeError as error:
                        failed[name] = " ".join(str(error).split())
    print(
        f"connections  {'proxy':20} {'added median, ms':>24} {'added p99, ms':>24} {'calls/s':>24} {'CPU ms a call':>20}"
    )
    for connections in CONNECTIONS:
        base_ms = statistics.median(row["median_ms"] for row in found["direct", connections])
        base_p99_ms = statistics.median(row["p99_ms"] for row in found["direct", connections])
        for name in ("direct", *(name for name in only if (name, connections) in found)):
            rows = found[name, connections]
            less, less_p99 = (0.0, 0.0) if name == "direct" else (base_ms, base_p99_ms)
            columns = (
                spread([row["median_ms"] - less for row in rows]),
                spread([row["p99_ms"] - less_p99 for row in rows]),
                spread([row["calls_per_s"] for row in rows], 0),
                "" if name == "direct" else spread([row["cpu_ms"] for row in rows]),
            )
            print(f"{connections:>11}  {name:20} {columns[0]:>24} {columns[1]:>24} {columns[2]:>24} {columns[3]:>20}")
    print("direct: its own latency, not an added one")
    for name in only:
        if name in failed:
            print(f"{name:28} not measured: {failed[name]}")
        elif not interpreter(PROXIES[name]):
            print(absent(PROXIES[name]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PROXIES, default=list(PROXIES))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run({"agentrl": serve_agentrl, "agentlightning": serve_agentlightning}[args.serve](args.url, args.port))
    else:
        asyncio.run(main(args.only, args.seconds, args.rounds))
