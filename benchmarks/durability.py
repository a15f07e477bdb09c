"""What it costs to keep every model call and episode as it happens: the quickstart with and without, in turns.

    python benchmarks/durability.py [--rounds 4] [--steps 16]

Each round is two short runs of the quickstart's configuration, `rollout.log_calls` on and off, in an order that changes from
round to round. Between its fourth and its last step, two figures of a run are taken: the episodes that it finished a second, and
the CPU time that its main process, engine and trainer took an episode, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics

ROOT = Path(__file__).parents[1]
FIRST_STEP = 4
RUN_TIMEOUT_S = 900.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Speed:
    """What one run came to."""

    episodes_per_s: float
    cpu_s_per_episode: float
    """Of all its processes together."""


def speed_of(tasks: Path, run_dir: Path, steps: int, *, log_calls: bool) -> Speed:
    """Run once."""
    words = ["train", "--config", "workflows/quickstart.toml", "--model", str(NANO)]
    words += ["--tasks", str(tasks / "train.jsonl")]
    options = {"run_dir": run_dir, "steps": steps, "eval.tasks": tasks / "eval.jsonl", "eval.limit": 1}
    options["rollout.log_calls"] = json.dumps(log_calls)
    words += [f"--{key}={value}" for key, value in options.items()]
    command = [sys.executable, "-m", "agentrl", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as run:
        try:
            first, cpu_before_s = _wait_for_step(run, run_dir, FIRST_STEP)
            last, cpu_s = _wait_for_step(run, run_dir, steps)
            run.wait(RUN_TIMEOUT_S)
        finally:
            run.kill()
    episodes = last["episodes_finished"] - first["episodes_finished"]
    return Speed(episodes / (last["wall_s"] - first["wall_s"]), (cpu_s - cpu_before_s) / episodes)


def _wait_for_step(run: subprocess.Popen[bytes], run_dir: Path, step: int) -> tuple[dict[str, Any], float]:
    """The metrics of the newest step once `step` is there, and the CPU seconds of the run so far."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < deadline and run.poll() is None:
        rows = read_metrics(run_dir)
        if rows and rows[-1]["step"] >= step:
            return rows[-1], sum(_cpu_s(pid) for pid in (run.pid, *_children(run.pid)))
        time.sleep(0.02)
    raise RuntimeError(f"step {step} did not come: the run's exit code is {run.poll()}")


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def _cpu_s(pid: int) -> float:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, values[11:13])) / TICKS_A_SECOND


def main() -> None:
    """Print the ratio of each round, and their median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    speeds, costs = [], []
    with tempfile.TemporaryDirectory(prefix="agentrl-durability-") as scratch:
        tasks = Path(scratch) / "tasks"
        subprocess.run(
            [sys.executable, "-m", "agentrl.envs.calculator_env", str(tasks)], check=True, stdout=subprocess.DEVNULL
        )
        for round_ in range(args.rounds):
            of: dict[bool, Speed] = {}
            for keep in (True, False) if round_ % 2 else (False, True):
                of[keep] = speed_of(tasks, Path(scratch) / f"{round_}-{keep}", args.steps, log_calls=keep)
            speeds.append(of[True].episodes_per_s / of[False].episodes_per_s)
            costs.append(of[True].cpu_s_per_episode / of[False].cpu_s_per_episode)
            print(
                f"round {round_}: {of[True].episodes_per_s:.1f} episodes/s with, {of[False].episodes_per_s:.1f} without: "
                f"{speeds[-1]:.3f}; CPU an episode {1000 * of[True].cpu_s_per_episode:.1f} ms with, "
                f"{1000 * of[False].cpu_s_per_episode:.1f} ms without: {costs[-1]:.3f}",
                flush=True,
            )
    print(
        f"median {statistics.median(speeds):.3f} of the speed, {statistics.median(costs):.3f} of the CPU time without"
    )


if __name__ == "__main__":
    main()
