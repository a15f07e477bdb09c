"""Throughput by the number of servers, measured and simulated, and what weight updates take of it (AReaL, arXiv 2505.24298: at most 5 %).

    python benchmarks/paper/scaling.py [--servers 1 2] [--simulated 8 16 32 64 128] [--plot docs/pictures/paper-scaling.svg]

Measured: real runs of the nano model with so many embedded servers, beside what the model of `scale_simulation.py` predicts of them on the
cores of this machine. Simulated: 7 B parameters on servers of one assumed GPU each, with batch, slots and ranks in proportion. While weights
are on their way, servers generate: an update takes longer than its pause.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster_model import Simulation
from scale_simulation import SETUPS, SKIPPED, TRACES, agent_episode, fitted, large, measured_run, workload

from agentrl.envs.calculator_env import distinct_tasks

ASYNCHRONOUS = SETUPS[1]
MAIN_CALL_S, MAIN_EPISODE_S = 60e-6, 500e-6
"""CPU of the main process for a call and an episode, as `main_process_cost.py` measures it."""


def measure(servers: Sequence[int], steps: int) -> None:
    """Print a row for each number of servers: what was measured, and what is predicted."""
    traces = json.loads(TRACES.read_text())
    costs, draw = fitted(traces), workload(traces)
    print("measured: servers  episodes/s  predicted  paused for weights  all of an update")
    with tempfile.TemporaryDirectory(prefix="agentrl-scaling-") as name:
        lines = [json.dumps(task) + "\n" for task in distinct_tasks(2000, seed=1_000_000)]
        (Path(name) / "train.jsonl").write_text("".join(lines))
        for count in servers:
            setup = replace(ASYNCHRONOUS, servers=count, steps=SKIPPED + steps)
            rows = measured_run(Path(name), setup)["steps"][SKIPPED:]
            taken_s = sum(row["step_s"] for row in rows)
            predicted = statistics.fmean(
                Simulation(setup, costs, draw, seed).run().episodes_per_s(SKIPPED) for seed in range(3)
            )
            paused = sum(row["pause_s"] for row in rows) / taken_s
            speed = sum(row["episodes"] for row in rows) / taken_s
            update = 1 - sum(row["wait_s"] + row["train_s"] for row in rows) / taken_s
            print(f"{count:17d} {speed:11.1f} {predicted:10.1f} {paused:19.1%} {update:17.1%}", flush=True)


def simulate(servers: Sequence[int]) -> dict[int, float]:
    """Print a row for each simulated size, and return the episodes a second of each."""
    gc.disable()  # nothing in a simulation refers to itself in a circle
    speeds: dict[int, float] = {}
    print("simulated: servers  episodes/s  of linear  paused for weights  all of an update")
    for count in servers:
        setup, costs = large(count, 2, MAIN_CALL_S, MAIN_EPISODE_S)
        result = Simulation(setup, costs, agent_episode).run()
        speeds[count] = result.episodes_per_s(SKIPPED)
        mean_s = statistics.fmean(result.step_s[SKIPPED:])
        paused, update = costs.pause_s / mean_s, (costs.pause_s + costs.spread_s) / mean_s
        linear = speeds[count] / count / (speeds[servers[0]] / servers[0])
        print(f"{count:18d} {speeds[count]:11.1f} {linear:10.0%} {paused:19.1%} {update:17.1%}", flush=True)
    return speeds


def plot(speeds: dict[int, float], path: Path) -> None:
    """Draw episodes a second by the number of servers, beside a straight line through the smallest."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    counts, smallest = list(speeds), min(speeds)
    axes.plot(counts, [speeds[smallest] / smallest * count for count in counts], ":", color="grey", label="linear")
    axes.plot(counts, list(speeds.values()), "o-", label="simulated")
    axes.set(xscale="log", yscale="log", xlabel="servers of one assumed GPU", ylabel="episodes a second")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, then simulate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20, help="of a real run, after those that fill the pipeline")
    parser.add_argument("--simulated", type=int, nargs="*", default=[8, 16, 32, 64, 128])
    parser.add_argument("--plot", type=Path, help="an SVG file")
    args = parser.parse_args()
    measure(args.servers, args.steps)
    speeds = simulate(args.simulated)
    if args.plot:
        plot(speeds, args.plot)


if __name__ == "__main__":
    main()
