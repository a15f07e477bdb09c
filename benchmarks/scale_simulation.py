"""Where a run stops to grow: a simulation of it, fitted to real runs, validated against them, and then made larger.

    python benchmarks/scale_simulation.py --measure     real runs on this machine (15 minutes; nothing else should run), to scale_traces.json
    python benchmarks/scale_simulation.py               predicted against measured; then 1 to 10,000 servers, and the plot

The runs are `long_tail_workflow.py` with the nano model: costs come from the CPU seconds of their processes, by least squares over what
these did, and from an engine server asked alone. Throughput and staleness are not fitted: they are what is predicted.
`cluster_model.py` is the model.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import long_tail_workflow as workflow
import numpy as np
from cluster_model import Costs, Result, Setup, Simulation, Turn

from agentrl.config import EngineConfig
from agentrl.engine.launch import launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.speedup import ideal_gain

TRACES = Path(__file__).with_name("scale_traces.json")
PLOT = Path(__file__).parent.parent / "docs" / "pictures" / "scale.svg"
SKIPPED = 3
"""Steps that are not looked at: they fill the pipeline, of η + 1 batches."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _setup(
    batch_size: int,
    max_staleness: int,
    max_concurrent: int,
    servers: int = 1,
    workers: int = 0,
    window: int | None = None,
) -> Setup:
    return Setup(
        batch_size=batch_size,
        group_size=8,
        max_staleness=max_staleness,
        window=window,
        max_concurrent=max_concurrent,
        servers=servers,
        workers=workers,
        steps=SKIPPED + max(12, 1280 // batch_size),
        cores=len(os.sched_getaffinity(0)),
    )


SETUPS = (
    _setup(64, 0, 64, window=1),
    _setup(64, 2, 64, window=16),
    _setup(64, 1, 64, window=1),
    _setup(32, 4, 32, window=1000),
    _setup(64, 2, 128, window=16),
    _setup(128, 2, 96, window=16),
    _setup(64, 2, 64, servers=2, window=16),
    _setup(64, 2, 64, workers=2, window=16),
)


# ---------------------------------------------------------------- real runs


def _kind(pid: int) -> str | None:
    """Return what a process of a run is; None: something else."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    kinds = {"agentrl.engine.embedded": "server", "agentrl.trainer": "trainer", "worker_process": "worker"}
    return next((kind for name, kind in kinds.items() if name in command), None)


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from (int(child) for child in task.read_text().split())
        except OSError:
            continue


def _cpu_by_kind(main: int) -> dict[str, float]:
    sums = {"main": _cpu_s(main)}
    for child in _children(main):
        if (kind := _kind(child)) is not None:
            sums[kind] = sums.get(kind, 0.0) + _cpu_s(child)
    return sums


def measured_run(directory: Path, setup: Setup) -> dict[str, Any]:
    """Train once, as a user starts it, and return what it did: its steps, its episodes, CPU seconds by process."""
    run_dir = directory / f"run-{time.time_ns()}"
    settings: dict[str, Any] = {
        "tasks": directory / "train.jsonl",
        "model.path": NANO,
        "run_dir": run_dir,
        "steps": setup.steps,
        "rollout.batch_size": setup.batch_size,
        "rollout.group_size": setup.group_size,
        "rollout.max_concurrent": setup.max_concurrent,
        "rollout.max_staleness": setup.max_staleness,
        "rollout.max_tokens": 64,
        "rollout.drop_uniform_groups": "false",
        "rollout.workers": setup.workers,
        "engine.servers": setup.servers,
        "trainer.optimizer.lr": 1e-6,
        "trainer.minibatches": 2,
        "trainer.checkpoint.every": 1000,
    }
    if setup.window:
        settings["rollout.window"] = setup.window
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        workflow.__file__,
        *(f"--{k}={v}" for k, v in settings.items()),
    ]
    states: list[tuple[float, dict[str, float]]] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        metrics = run_dir / "metrics.jsonl"
        lines = 0
        while process.poll() is None:
            time.sleep(0.05)
            if metrics.exists() and (found := metrics.read_bytes().count(b"\n")) > lines:
                lines = found
                states.append((time.time(), _cpu_by_kind(process.pid)))
    if process.returncode:
        raise SystemExit(f"the run {' '.join(command)} failed")
    (began, before), (ended, after) = states[SKIPPED - 1], states[-1]
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    episodes = _episodes(run_dir / "store.sqlite")
    inside = [e for e in episodes if began < e["ended"] <= ended]
    return {
        "setup": asdict(setup),
        "steps": [
            {
                name: row[name]
                for name in ("step_s", "wait_s", "train_s", "pause_s", "staleness_mean", "episodes", "trained_tokens")
                if name in row
            }
            for row in steps
        ],
        "cpu_s": {kind: after[kind] - before.get(kind, 0.0) for kind in after},
        "wall_s": ended - began,
        "did": {
            "steps": len(states) - SKIPPED,
            "episodes": len(inside),
            "calls": sum(len(e["turns"]) for e in inside),
            "output_tokens": sum(turn[1] for e in inside for turn in e["turns"]),
        },
        "episodes": [{"seed": e["seed"], "turns": e["turns"], "duration_s": e["duration_s"]} for e in episodes],
    }


def _episodes(store: Path) -> list[dict[str, Any]]:
    from agentrl.store.rows import CallRow, PackedRecord

    with sqlite3.connect(store) as db:
        rows = db.execute(
            "SELECT id, seed, record, prompt_ids, started_at, duration_s FROM episodes WHERE reason = 'finished'"
        ).fetchall()
        found = []
        for number, seed, record, prompt_ids, started_at, duration_s in rows:
            query = f"SELECT {', '.join(CallRow._fields)} FROM calls WHERE episode = ? ORDER BY turn"
            calls = [CallRow(*row) for row in db.execute(query, (number,))]
            turns = [
                (len(turn.prompt_ids), len(turn.output_ids)) for turn in PackedRecord(record, prompt_ids, calls).turns
            ]
            found.append({"seed": seed, "turns": turns, "ended": started_at + duration_s, "duration_s": duration_s})
    return found


async def _server_costs(directory: Path) -> dict[str, float]:
    """Return (step_s, reply_step_s, prompt_token_s) of an embedded server that is asked alone."""
    config = EngineConfig(kind="embedded")
    async with launch_engine(NANO, config, log=directory / "engine.log") as engine:
        server = next(child for child in _children(os.getpid()) if _kind(child) == "server")

        async def cost_s(replies: int, prompt: int, tokens: int) -> float:
            before = _cpu_s(server)
            async with anyio.create_task_group() as group:
                for number in range(replies):
                    ids = [5 + (number * 31 + k * 7 + prompt) % 400 for k in range(prompt)]
                    sampling = Sampling(max_new_tokens=tokens, temperature=1.6, logit_bias=[(2, -100.0)])
                    group.start_soon(engine.generate, ids, sampling, f"{number}-{prompt}-{tokens}")
            return _cpu_s(server) - before

        await cost_s(8, 16, 16)
        rows, seconds = [], []
        for replies in (1, 4, 16, 48):
            for prompt, tokens in ((16, 64), (16, 192), (256, 64)):
                rounds = max(1, 16 // replies)
                spent = sum([await cost_s(replies, prompt + k % 2, tokens) for k in range(rounds)])
                rows.append([tokens * rounds, tokens * replies * rounds, prompt * replies * rounds])
                seconds.append(spent)
    step_s, reply_step_s, prompt_token_s = _fit(rows, seconds)
    return {"step_s": step_s, "reply_step_s": reply_step_s, "prompt_token_s": prompt_token_s}


def measure() -> None:
    """Run everything, and write the traces."""
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        directory = Path(name)
        (directory / "train.jsonl").write_text(
            "".join(json.dumps(task) + "\n" for task in distinct_tasks(2000, seed=1_000_000))
        )
        server = anyio.run(_server_costs, directory)
        print(f"an engine server alone: {server}", flush=True)
        runs = []
        for setup in SETUPS:
            run = measured_run(directory, setup)
            runs.append(run)
            print(f"{_name(setup)}: {run['wall_s']:.0f} s, CPU {run['cpu_s']}", flush=True)
    library = [e for run in runs[:2] for e in run["episodes"]]
    TRACES.write_text(
        json.dumps(
            {
                "server": server,
                "runs": [
                    {**run, "episodes": []} | {"durations_s": [round(e["duration_s"], 3) for e in run["episodes"]]}
                    for run in runs
                ],
                "library": library,
            }
        )
        + "\n"
    )


# ---------------------------------------------------------------- fit, and prediction


def _fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return costs x ≥ 0 with rows · x ≈ seconds, by least squares of the relative errors; a cost that comes out negative is 0."""
    matrix, target = np.array(rows, float), np.array(seconds, float)
    weights = 1 / np.maximum(target, 1e-6)
    kept = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, kept] * weights[:, None], target * weights, rcond=None)[0]
        if (found >= 0).all():
            break
        del kept[int(found.argmin())]
    costs = [0.0] * matrix.shape[1]
    for index, value in zip(kept, found, strict=True):
        costs[index] = float(value)
    return costs


def fitted(traces: dict[str, Any]) -> Costs:
    """Return the costs of this machine's processes, from all runs."""
    alone = [run for run in traces["runs"] if not run["setup"]["workers"]]
    apart = [run for run in traces["runs"] if run["setup"]["workers"]]

    def a_call_s(runs: Sequence[dict[str, Any]], kind: str) -> float:
        return sum(run["cpu_s"][kind] for run in runs) / sum(run["did"]["calls"] for run in runs)

    # Every episode here is much like the others, so what a call, an episode and a token cost cannot be told apart: all is a call's.
    main_s = a_call_s(apart, "main")
    train_step_s, train_token_s = _fit(
        [[run["did"][name] for name in ("steps", "output_tokens")] for run in traces["runs"]],
        [run["cpu_s"]["trainer"] for run in traces["runs"]],
    )
    return Costs(
        main_episode_s=0.0,
        main_call_s=main_s,
        worker_call_s=max(a_call_s(alone, "main") - main_s, 0.0),
        worker_token_s=0.0,
        train_step_s=train_step_s,
        train_token_s=train_token_s,
        pause_s=statistics.fmean(step["pause_s"] for run in traces["runs"] for step in run["steps"]),
        **traces["server"],
    )


def workload(traces: dict[str, Any]) -> Callable[[random.Random], list[Turn]]:
    """Return what draws episodes of the library: tokens as recorded, and the waits that the workflow drew from their seed."""
    library = []
    for episode in traces["library"]:
        rng = random.Random(episode["seed"])
        rng.paretovariate(1.2)
        waits = [0.0] + [
            min(workflow.LONGEST_TOOL_S, workflow.MEDIAN_TOOL_S * rng.lognormvariate(0, workflow.TOOL_SIGMA))
            for _ in episode["turns"][1:]
        ]
        library.append(
            [Turn(prompt, output, wait) for (prompt, output), wait in zip(episode["turns"], waits, strict=True)]
        )
    return lambda rng: library[rng.randrange(len(library))]


def _name(setup: Setup) -> str:
    return f"B = {setup.batch_size}, η = {setup.max_staleness}, W = {setup.window or 'G'}, {setup.max_concurrent} slots, {setup.servers} servers, {setup.workers} workers"


def validate(traces: dict[str, Any], costs: Costs) -> None:
    """Print what the model predicts of each run beside what was measured."""
    draw = workload(traces)
    print("predicted / measured\tepisodes/s\tstaleness")
    for run in traces["runs"]:
        setup = Setup(**run["setup"])
        steps = run["steps"][SKIPPED:]
        measured = sum(s["episodes"] for s in steps) / sum(s["step_s"] for s in steps)
        stale = statistics.fmean(s["staleness_mean"] for s in steps)
        results = [Simulation(setup, costs, draw, seed).run() for seed in range(5)]
        rate = statistics.fmean(r.episodes_per_s(SKIPPED) for r in results)
        age = statistics.fmean(r.mean_staleness(SKIPPED) for r in results)
        busy = {kind: round(statistics.fmean(r.busy[kind] for r in results), 2) for kind in results[0].busy}
        print(
            f"{_name(setup)}\t{rate:.2f} / {measured:.2f} ({rate / measured - 1:+.0%})\t{age:.2f} / {stale:.2f}\t{busy}"
        )


# ---------------------------------------------------------------- larger

GPUS_A_NODE = 8
REPLIES_A_SERVER = 100
WEIGHTS_BYTES = 15e9
NODE_BYTES_S = 3e9
"""Bytes a second that a node receives or sends: 25 Gbit/s."""


def agent_episode(rng: random.Random) -> list[Turn]:
    """Draw an episode of 8 turns and about 4,096 sampled tokens, with long-tailed replies and tools."""
    return [
        Turn(300, max(16, min(4096, int(340 * rng.lognormvariate(0, 0.85)))), min(60.0, rng.lognormvariate(0, 1)))
        for _ in range(8)
    ]


def large(servers: int, max_staleness: int, main_call_s: float, main_episode_s: float) -> tuple[Setup, Costs]:
    """Return a run of a model of 7 B parameters on servers and ranks of one GPU each.

    What a GPU does is assumed: a decoding step reads 15 GB of weights (8 ms with what is around it) and, for each reply, the cache of 4,096
    tokens (0.08 ms at 3 TB/s); prompts and training run at 400 TFLOP/s, with 2 and 8 FLOP a parameter and token. What the main process does
    is measured: `main_process_cost.py`. Weights go from node to node in a tree, each node handing on what it has.
    """
    slots = REPLIES_A_SERVER * servers
    batch = slots // 2 // 8 * 8
    nodes = math.ceil(servers / GPUS_A_NODE)
    setup = Setup(
        batch_size=batch,
        group_size=8,
        max_staleness=max_staleness,
        window=batch // 4 if max_staleness else 1,
        max_concurrent=slots,
        steps=SKIPPED + 2 if max_staleness else 2,
        servers=servers,
        workers=4 * nodes,
        trainers=max(1, servers // 2),
    )
    costs = Costs(
        main_episode_s=main_episode_s,
        main_call_s=main_call_s,
        worker_call_s=0.003,
        worker_token_s=2e-6,
        step_s=0.008,
        reply_step_s=0.00008,
        prompt_token_s=2 * 7e9 / 400e12,
        train_step_s=1.0,
        train_token_s=8 * 7e9 / 400e12,
        pause_s=0.5,
        spread_s=WEIGHTS_BYTES / NODE_BYTES_S * math.ceil(math.log2(nodes + 1)),
    )
    return setup, costs


@dataclass(frozen=True)
class Size:
    """What a simulation of one size says."""

    servers: int
    episodes_per_s: float
    efficiency: float
    """ε = S / S_max, with S_max of the synchronous run's own trace (docs/benchmarks.md)."""
    staleness: float
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """The kind of process that computes the largest share of the time."""
        return max(self.busy, key=lambda kind: self.busy[kind])


def simulate_size(servers: int, main_call_s: float, main_episode_s: float) -> Size:
    """Simulate a size twice, synchronously and not."""

    def run(max_staleness: int) -> Result:
        setup, costs = large(servers, max_staleness, main_call_s, main_episode_s)
        return Simulation(setup, costs, agent_episode).run()

    synchronous, overlapped = run(0), run(2)
    setup, costs = large(servers, 0, main_call_s, main_episode_s)
    rollout_s = setup.batch_size * statistics.fmean(synchronous.durations_s) / setup.max_concurrent
    train_s = statistics.fmean(synchronous.train_s) + costs.spread_s
    best = ideal_gain(rollout_s, statistics.fmean(synchronous.wait_s), train_s, costs.pause_s)
    gain = overlapped.episodes_per_s(SKIPPED) / synchronous.episodes_per_s(0)
    return Size(
        servers, overlapped.episodes_per_s(SKIPPED), gain / best, overlapped.mean_staleness(SKIPPED), overlapped.busy
    )


def plot(sizes: Sequence[Size], path: Path) -> None:
    """Draw ε and what is busy against the number of nodes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    nodes = [size.servers / GPUS_A_NODE for size in sizes]
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(nodes, [size.efficiency for size in sizes], "o-", color="black", label="ε")
    for kind, name in (
        ("server", "engine servers"),
        ("trainer", "trainer"),
        ("worker", "rollout workers"),
        ("main", "main process"),
    ):
        axes.plot(nodes, [size.busy[kind] for size in sizes], "o--", label=f"{name}: share of the time busy")
    axes.set(xscale="log", xlabel="nodes of 8 servers", ylim=(0, 1.3))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure, or predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run the real runs, and write scale_traces.json")
    parser.add_argument(
        "--servers", type=int, nargs="*", default=[8, 80, 800], help="the sizes; 10,000 take half an hour and 16 GB"
    )
    parser.add_argument("--main-call-us", type=float, default=60.0, help="CPU of the main process for a call")
    parser.add_argument("--main-episode-us", type=float, default=500.0, help="CPU of the main process for an episode")
    parser.add_argument("--plot", type=Path, help=f"where to draw it, such as {PLOT.relative_to(PLOT.parents[2])}")
    args = parser.parse_args()
    if args.measure:
        measure()
    traces = json.loads(TRACES.read_text())
    costs = fitted(traces)
    print(costs)
    validate(traces, costs)
    gc.disable()  # nothing in a simulation refers to itself in a circle
    print("servers\tepisodes/s\tε\tstaleness\tbusy\tbottleneck")
    sizes = []
    for servers in args.servers:
        size = simulate_size(servers, args.main_call_us / 1e6, args.main_episode_us / 1e6)
        sizes.append(size)
        busy = {kind: round(share, 2) for kind, share in size.busy.items()}
        print(
            f"{servers}\t{size.episodes_per_s:.1f}\t{size.efficiency:.2f}\t{size.staleness:.2f}\t{busy}\t{size.bottleneck}",
            flush=True,
        )
    if args.plot:
        plot(sizes, args.plot)


if __name__ == "__main__":
    main()
