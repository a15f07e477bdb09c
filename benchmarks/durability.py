"""What it costs to keep every model call and episode as it happens: the quickstart with and without, in turns.

    python benchmarks/durability.py [--rounds 4] [--steps 16]

Each round is two short runs of the quickstart's configuration, `rollout.keep_calls` on and off, in an order that changes from
round to round. A run's speed is the episodes that it finished a second between its fourth and its last step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.models import NANO
from agentrl.run_directory import read_metrics

ROOT = Path(__file__).parents[1]
FIRST_STEP = 4


def episodes_per_s(tasks: Path, run_dir: Path, steps: int, *, keep_calls: bool) -> float:
    """The speed of one run."""
    words = [
        "train",
        "--config",
        "workflows/quickstart.toml",
        "--model",
        str(NANO),
        "--tasks",
        str(tasks / "train.jsonl"),
    ]
    options = {"run_dir": run_dir, "steps": steps, "eval.tasks": tasks / "eval.jsonl", "eval.limit": 1}
    options["rollout.keep_calls"] = json.dumps(keep_calls)
    words += [f"--{key}={value}" for key, value in options.items()]
    subprocess.run(
        [sys.executable, "-m", "agentrl.cli", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=900
    )
    rows = read_metrics(run_dir)
    first, last = rows[FIRST_STEP - 1], rows[-1]
    return float(last["episodes_finished"] - first["episodes_finished"]) / float(last["wall_s"] - first["wall_s"])


def main() -> None:
    """Print the ratio of each round, and their median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory(prefix="agentrl-durability-") as scratch:
        tasks = Path(scratch) / "tasks"
        subprocess.run(
            [sys.executable, "-m", "agentrl.envs.calculator", str(tasks)], check=True, stdout=subprocess.DEVNULL
        )
        for round_ in range(args.rounds):
            speed = {}
            for keep in (True, False) if round_ % 2 else (False, True):
                speed[keep] = episodes_per_s(tasks, Path(scratch) / f"{round_}-{keep}", args.steps, keep_calls=keep)
            ratios.append(speed[True] / speed[False])
            print(
                f"round {round_}: {speed[True]:.1f} episodes/s with, {speed[False]:.1f} without: {ratios[-1]:.3f}",
                flush=True,
            )
    print(f"median {statistics.median(ratios):.3f} of the speed without")


if __name__ == "__main__":
    main()
