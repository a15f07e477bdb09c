"""Episodes of five turns with a tool, all at the same time, by agentrl and by others: `python benchmarks/peers/rollouts.py`.

A stub in a process of its own answers every call after a second with a tool call, so that what is measured is the client. Each client is a
process of its own, in its own environment, and begins all episodes at once:

    agentrl              a workflow with our tool loop, proxy and record of every token included, against an SGLang server
    agentrl/no-proxy     the same workflow against any OpenAI-compatible endpoint: nothing is recorded, as with the others
    verifiers-0.1        `ToolEnv.generate` of verifiers 0.1.14, the last that plays episodes in its own process
    inspect-ai           `eval` of a task whose solver calls `generate` with a tool; start and log of the evaluation included

episodes/s a core: episodes by seconds of CPU of the client process; memory: peak of its resident set beyond that before the episodes, by
their number; lag: how late a task of its event loop that sleeps 10 ms wakes up. Clients are measured in turn, in rounds.
verifiers 0.4 is not measured: even its null harness runs the agent of each episode as a program of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

TURNS = 5
WARM_UP = 8
MODEL = "nano"
QUESTION = "What is 20 + 22?"
CLIENTS = {
    "agentrl": "agentrl",
    "agentrl/no-proxy": "agentrl",
    "verifiers-0.1": "verifiers-0.1",
    "inspect-ai": "inspect-ai",
}
"""Clients, each with the name of its environment."""


@dataclass
class Measured:
    """What a client process finds out about itself."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    grown_bytes: float = 0.0
    """By how much its resident set grew at most."""
    lags_s: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Sample the lag of the event loop, for ever."""
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.01)
            self.lags_s.append(time.perf_counter() - begun - 0.01)

    @property
    def lag_p99_s(self) -> float:
        return sorted(self.lags_s)[int(0.99 * (len(self.lags_s) - 1))]


def resident_bytes() -> int:
    """Return the resident set of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def measuring(measured: Measured) -> Iterator[None]:
    """Measure the body."""
    before, ended = resident_bytes(), threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            measured.grown_bytes = max(measured.grown_bytes, resident_bytes() - before)

    sampling = threading.Thread(target=sample)
    sampling.start()
    started, cpu_started = time.perf_counter(), time.process_time()
    yield
    measured.wall_s, measured.cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    ended.set()
    sampling.join()


async def measure(play: Callable[[int], Awaitable[object]], episodes: int) -> Measured:
    """Measure `play`, which plays so many episodes on this event loop."""
    await play(WARM_UP)
    measured = Measured()
    watching = asyncio.ensure_future(measured.watch())
    with measuring(measured):
        await play(episodes)
    watching.cancel()
    return measured


async def agentrl(url: str, episodes: int, proxied: bool) -> Measured:
    """Measure agentrl, through its proxy or without."""
    from contextlib import AsyncExitStack
    from dataclasses import replace

    import anyio

    from agentrl import Episode
    from agentrl.engine.client import sglang_engine
    from agentrl.envs import ToolEnv, tool
    from agentrl.models import NANO
    from agentrl.proxy import load_chat_format, open_proxy
    from agentrl.rollout.run_episode import local_runner, remote_runner

    class Adding(ToolEnv):
        max_turns = TURNS

        async def on_reset(self, task: dict[str, Any] | None) -> str:
            return QUESTION

        @tool
        async def add(self, a: int, b: int) -> str:
            """Add two numbers."""
            return str(a + b)

    async def run(episode: Episode) -> float:
        await episode.env(Adding).play(episode)
        return 1.0

    async with AsyncExitStack() as stack:
        if proxied:
            engine = await stack.enter_async_context(sglang_engine([url]))
            chat_format = replace(load_chat_format(NANO), context_length=2**17)
            proxy = await stack.enter_async_context(open_proxy(engine, chat_format, MODEL))
            runner = await stack.enter_async_context(local_runner(run, proxy, timeout_s=3600))
        else:
            remote = remote_runner(run, base_url=f"{url}/v1", api_key="-", model=MODEL, timeout_s=3600)
            runner = await stack.enter_async_context(remote)

        async def one(seed: int) -> None:
            outcome = await runner.run({}, seed)
            if not outcome.finished:
                raise RuntimeError(outcome.error)

        async def play(count: int) -> None:
            async with anyio.create_task_group() as group:
                for seed in range(count):
                    group.start_soon(one, seed)

        return await measure(play, episodes)


async def verifiers_01(url: str, episodes: int) -> Measured:
    """Measure verifiers 0.1."""
    import verifiers as vf
    from datasets import Dataset
    from verifiers.types import ClientConfig

    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    def done(completion: Any) -> float:
        return 1.0

    rows = Dataset.from_list([{"question": QUESTION, "answer": "42", "example_id": row} for row in range(episodes)])
    env = vf.ToolEnv(dataset=rows, tools=[add], max_turns=TURNS, rubric=vf.Rubric(funcs=[done]))
    config = ClientConfig(api_key_var="STUB_KEY", api_base_url=f"{url}/v1", timeout=3600, connect_timeout=600)
    inputs = env.get_dataset()

    async def play(count: int) -> None:
        chosen = inputs.select(range(count)).to_list()
        found = await env.generate(chosen, client=config, model=MODEL, on_progress=lambda *_: None)
        assert all(output["reward"] == 1.0 and not output.get("error") for output in found["outputs"])

    return await measure(play, episodes)


def inspect_ai(url: str, episodes: int) -> Measured:
    """Measure Inspect, which runs an event loop of its own."""
    from inspect_ai import Task, eval  # noqa: A004
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import Generate, TaskState, solver, use_tools
    from inspect_ai.tool import tool

    measured = Measured()
    watching: list[Any] = []

    @tool
    def add() -> Any:
        async def execute(a: int, b: int) -> str:
            """Add two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return str(a + b)

        return execute

    @solver
    def five_turns() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            if not watching:
                watching.append(asyncio.ensure_future(measured.watch()))
            for _ in range(TURNS):
                state = await generate(state, tool_calls="single")
            return state

        return solve

    def play(count: int) -> None:
        task = Task([Sample(QUESTION) for _ in range(count)], solver=[use_tools(add()), five_turns()])
        with tempfile.TemporaryDirectory() as logs:
            [log] = eval(
                task,
                model=f"openai-api/stub/{MODEL}",
                model_base_url=f"{url}/v1",
                display="none",
                log_dir=logs,
                ctl_server=False,
                max_samples=count,
                max_connections=count,
            )
        if log.status != "success":
            raise RuntimeError(str(log.error))

    play(WARM_UP)
    watching.clear()
    measured.lags_s.clear()
    with measuring(measured):
        play(episodes)
    return measured


def be_client(name: str, url: str, episodes: int) -> None:
    """Be one of the clients, and print what was measured as the last line."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if name == "inspect-ai":
        measured = inspect_ai(url, episodes)
    elif name == "verifiers-0.1":
        measured = asyncio.run(verifiers_01(url, episodes))
    else:
        measured = asyncio.run(agentrl(url, episodes, proxied=name == "agentrl"))
    print("\n" + json.dumps({**asdict(measured), "lags_s": [], "lag_p99_s": measured.lag_p99_s}), flush=True)


def run_client(name: str, python: str, url: str, episodes: int) -> dict[str, float]:
    """Run a client process to its end, and return what it measured.

    Raises:
        RuntimeError: It failed, or made another number of calls.
    """
    before = calls(url)
    keys = {"STUB_KEY": "-", "STUB_API_KEY": "-", "HF_HUB_OFFLINE": "1"}
    command = [python, __file__, "--client", name, "--url", url, "--episodes", str(episodes)]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **keys}, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    made, asked = calls(url) - before, TURNS * (episodes + WARM_UP)
    # The engine's client asks for a token or two of its own, to see what the server is.
    if not asked <= made <= asked + 3:
        raise RuntimeError(f"{name}: {made} calls of the model instead of {asked}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def calls(url: str) -> int:
    """Return how many replies the stub was asked for so far."""
    with urllib.request.urlopen(f"{url}/calls", timeout=60) as answer:
        return int(answer.read())


def main(only: list[str], episodes: int, rounds: int, delay_s: float) -> None:
    """Measure each client in turn, in rounds; print a table."""
    from installed import absent, head, interpreter, spread
    from stub_server import stub_server

    found: dict[str, list[dict[str, float]]] = {}
    print(head(sorted(set(CLIENTS.values()))))
    print(
        f"{episodes:,} episodes at once, {TURNS} turns, replies after {delay_s:g} s; rounds: {rounds}, median (range)\n"
    )
    with stub_server(delay_s) as url:
        for _ in range(rounds):
            for name in only:
                if python := interpreter(CLIENTS[name]):
                    found.setdefault(name, []).append(run_client(name, str(python), url, episodes))
                    print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    print(f"{'':18} {'episodes/s a core':>24} {'kB an episode':>22} {'lag p99, ms':>24} {'seconds in all':>22}")
    for name in only:
        if name not in found:
            print(absent(CLIENTS[name]))
            continue
        columns = (
            spread([episodes / one["cpu_s"] for one in found[name]]),
            spread([one["grown_bytes"] / episodes / 1000 for one in found[name]]),
            spread([1000 * one["lag_p99_s"] for one in found[name]]),
            spread([one["wall_s"] for one in found[name]]),
        )
        print(f"{name:18} {columns[0]:>24} {columns[1]:>22} {columns[2]:>24} {columns[3]:>22}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-s", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        be_client(args.client, args.url, args.episodes)
    else:
        main(args.only, args.episodes, args.rounds, args.delay_s)
