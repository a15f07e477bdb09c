"""What grows, and how fast: each cost as a curve over its size, with the exponent at its end.

    python benchmarks/growth.py turns 1 10 50 200               CPU of a call at its turn, kept in a call log
    python benchmarks/growth.py episodes 100 1000 10000         memory of an episode, and lag of the event loop, with so many at once
    python benchmarks/growth.py steps 20 200 2000               memory and descriptors of a run's processes after so many steps

The exponent b of cost ∝ size^b is that between the last two sizes: 0 is flat, 1 linear. An episode of `episodes` calls the model three
times through the `openai` client and the proxy, whose engine answers at once, and waits in between as in an environment: so long that
the process is busy about half of the time. `steps` trains nano for real, on the quickstart's tasks in small batches.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
from data_path import RandomEngine, converse

from agentrl import Episode
from agentrl.config import RunConfig
from agentrl.models import NANO
from agentrl.proxy import load_chat_format, open_proxy
from agentrl.rollout.open_runner import open_rollout
from agentrl.run.run_directory import read_metrics
from agentrl.store.call_log import open_call_log
from agentrl.store.changes import OpenGroup
from agentrl.store.store import Store

ROOT = Path(__file__).parents[1]
Costs = dict[str, float]
CALLS = 3
"""Model calls of an episode."""
CALL_S = 0.006
"""What an episode waits after each call for each of the episodes: twice or more what a call takes."""


async def turns(sizes: list[int], scratch: Path) -> dict[int, Costs]:
    """One conversation of the most turns, several times."""
    chat_format = replace(load_chat_format(NANO), context_length=2**20)
    used: dict[int, list[float]] = {size: [] for size in sizes}
    async with open_proxy(RandomEngine(128), chat_format, "nano") as proxy:
        with Store(scratch / "store.sqlite") as store:
            store.begin_restart()
            async with open_call_log(store) as call_log:
                for number in range(6):
                    store.write([OpenGroup(number, 0, number)])
                    session = proxy.open_session(call_log=call_log.episode(number, 0))
                    costs = await converse(proxy, session, max(sizes))
                    proxy.close_session(session)
                    for size in sizes:
                        used[size] += costs[size - 1 : size] if number else []  # the first warms up
    return {size: {"CPU ms": 1000 * statistics.median(values)} for size, values in used.items()}


async def episodes(sizes: list[int], scratch: Path) -> dict[int, Costs]:
    """So many episodes at once, each size in turn."""
    own, found = psutil.Process(), {}
    config = RunConfig(model=str(NANO), rollout={"episode_timeout_s": 100_000, "max_concurrent": max(sizes)})

    for size in [10, *sizes]:  # the first warms up
        wait_s = size * CALL_S
        lags: list[float] = []

        async def run(episode: Episode, wait_s: float = wait_s) -> float:
            messages: list[Any] = [{"role": "user", "content": f"{episode.seed} + 1 ="}]
            for _ in range(CALLS):
                reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
                said = reply.choices[0].message.content
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "+ 1 ="}]
                await anyio.sleep(wait_s)
            return 1.0

        async def watch(lags: list[float] = lags) -> None:
            while True:
                begun = time.perf_counter()
                await anyio.sleep(0.01)
                lags.append(time.perf_counter() - begun - 0.01)

        async with open_rollout(config, run, RandomEngine(16), logs=scratch, say=print) as runner:
            gc.collect()
            before, used, started = own.memory_info().rss, time.process_time(), time.perf_counter()
            async with anyio.create_task_group() as watching:
                watching.start_soon(watch)
                async with anyio.create_task_group() as group:
                    for seed in range(size):  # they begin within the length of one wait
                        group.start_soon(runner.run, {}, seed)
                        await anyio.sleep(max(0.0, started + wait_s * (seed + 1) / size - time.perf_counter()))
                    await anyio.sleep(2 * wait_s)
                    peak = own.memory_info().rss
                watching.cancel_scope.cancel()
        wall_s, lags = time.perf_counter() - started, sorted(lags)
        found[size] = {
            "kB an episode": (peak - before) / size / 1000,
            "lag p50 ms": 1000 * statistics.median(lags),
            "lag p99 ms": 1000 * lags[int(0.99 * len(lags))],
            "CPU ms a call": 1000 * (time.process_time() - used) / size / CALLS,
            "busy": (time.process_time() - used) / wall_s,
        }
    return {size: found[size] for size in sizes}


async def steps(sizes: list[int], scratch: Path) -> dict[int, Costs]:
    """One run of the most steps, looked at when it has taken so many."""
    tasks, run_dir = scratch / "tasks", scratch / "run"
    command = [sys.executable, "-m", "agentrl.envs.calculator_env", str(tasks)]
    subprocess.run(command, check=True, capture_output=True)
    options = {
        "run-dir": run_dir,
        "tasks": tasks / "train.jsonl",
        "eval.tasks": tasks / "eval.jsonl",
        "eval.limit": 1,
        "eval.every": 1_000_000,
        "steps": max(sizes),
        "rollout.batch-size": 8,
        "rollout.group-size": 2,
        "rollout.max-tokens": 16,
        "rollout.drop-uniform-groups": "false",
    }
    words = ["train", "--config", "workflows/quickstart.toml", f"--model={NANO}"]
    words += [f"--{name}={value}" for name, value in options.items()]
    found: dict[int, Costs] = {}
    with (scratch / "run.log").open("w") as log:
        process = psutil.Popen([sys.executable, "-m", "agentrl", *words], cwd=ROOT, stdout=log, stderr=log)
    try:
        while len(found) < len(sizes):
            await anyio.sleep(0.5)
            if process.poll() not in (None, 0):
                raise SystemExit((scratch / "run.log").read_text())
            rows = read_metrics(run_dir) if run_dir.exists() else []
            for size in sizes:
                if len(rows) >= size and size not in found:
                    found[size] = {**memory_of(process), "ms a step": 1000 * rows[-1]["wall_s"] / len(rows)}
    finally:
        process.terminate()
        process.wait(60)
    return found


def memory_of(process: psutil.Process) -> Costs:
    """The memory of a run's processes in MB, and their descriptors."""
    costs: Costs = {}
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            words = " ".join(one.cmdline())
            name = (
                "main"
                if one == process
                else "engine"
                if "embedded" in words
                else "trainer"
                if "trainer" in words
                else ""
            )
            if name:
                costs[f"{name} MB"] = one.memory_info().rss / 1e6
                costs[f"{name} files"] = one.num_fds()
    return costs


CURVES: dict[str, Callable[[list[int], Path], Awaitable[dict[int, Costs]]]] = {
    "episodes": episodes,
    "steps": steps,
    "turns": turns,
}


def exponent(curve: dict[int, Costs], name: str) -> str:
    """The b of cost ∝ size^b between the last two sizes."""
    (size, cost), (larger, dearer) = [(size, costs[name]) for size, costs in curve.items()][-2:]
    return f"{math.log(dearer / cost) / math.log(larger / size):.2f}" if min(cost, dearer) > 0 else "-"


def main() -> None:
    """Print the curve that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve", choices=sorted(CURVES))
    parser.add_argument("sizes", type=int, nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-growth-") as scratch:
        curve = anyio.run(CURVES[args.curve], args.sizes, Path(scratch))
    names = list(curve[args.sizes[-1]])
    print(f"{args.curve:>10}  " + "  ".join(f"{name:>14}" for name in names))
    for size, costs in curve.items():
        print(f"{size:10,d}  " + "  ".join(f"{costs.get(name, 0.0):14.2f}" for name in names))
    if len(curve) > 1:
        print(f"{'exponent':>10}  " + "  ".join(f"{exponent(curve, name):>14}" for name in names))


if __name__ == "__main__":
    main()
