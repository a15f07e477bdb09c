"""How much asynchrony gains, and where the rest is lost: `python benchmarks/async_vs_sync.py`.

One job, trained twice to the same number of episodes on a workload with long-tailed reply lengths and tool times
(long_tail_workflow.py): synchronously (η = 0) and asynchronously (η = 2), in turn, three times. Prints for each round the
throughput ratio S, the bound S_max from both halves and their quotient ε (timeline.py), and what trainer and slots did; then medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timeline import RunTimeline, gain

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO

BATCH = 64
SLOTS = 64
WORKFLOW = Path(__file__).with_name("long_tail_workflow.py")


def train(directory: Path, run_dir: Path, staleness: int, steps: int, window: int) -> None:
    """One run, through the command line as users start it."""
    settings = {
        "tasks": directory / "train.jsonl",
        "eval.tasks": directory / "eval.jsonl",
        "model.path": NANO,
        "run_dir": run_dir,
        "steps": steps,
        "rollout.batch_size": BATCH,
        "rollout.max_concurrent": SLOTS,
        "rollout.max_staleness": staleness,
        "rollout.max_tokens": 64,
        "rollout.drop_uniform_groups": "false",
        "trainer.optimizer.lr": 2e-4,
        "trainer.minibatches": 2,
        "trainer.checkpoint.every": 1000,
    }
    if staleness:
        settings["rollout.window"] = window
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(WORKFLOW),
        *(f"--{k}={v}" for k, v in settings.items()),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def describe(label: str, run_dir: Path, run: RunTimeline) -> None:
    """Print what a half was, and where its time went."""
    s = json.loads((run_dir / "summary.json").read_text())
    print(
        f"{label}: {BATCH / run.step_s:6.2f} episodes/s over {len(run.rows)} steps of {BATCH}; "
        f"staleness mean {s['staleness_mean']:.2f}, max {s['staleness_max']:.0f} (bound {s['staleness_bound']}); "
        f"reward {s['eval_before']:.3f} → {s['eval_after']:.3f}; load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"       a step {run.step_s:.2f} s, R = {run.rollout_s:.2f} s, T = {run.train_s:.2f} s, "
        f"p = {1000 * run.mean('pause_s'):.0f} ms"
    )
    for name, shares in (("trainer", run.trainer_shares()), ("slots", run.slot_shares())):
        print(f"       {name}: " + ", ".join(f"{what} {share:.1%}" for what, share in shares.items()), flush=True)


def main() -> None:
    """Train twice, in turn, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--skip", type=int, default=3, help="steps at the beginning, and at the end, that count for nothing"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=16, help="W of the asynchronous run, in groups; a batch has 8")
    args = parser.parse_args()
    skip, found = min(args.skip, (args.steps - 1) // 2), []
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        directory = Path(name)
        for part, tasks in (("eval", distinct_tasks(200, seed=7)), ("train", distinct_tasks(2000, seed=1_000_000))):
            (directory / f"{part}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        for number in range(args.rounds):
            halves = []
            for staleness in (0, 2):
                run_dir = directory / f"{number}-eta-{staleness}"
                train(directory, run_dir, staleness, args.steps, args.window)
                halves.append(RunTimeline.read(run_dir, skip))
                describe(f"η = {staleness}", run_dir, halves[-1])
            found.append(gain(*halves))
            print("S = {:.2f}, S_max = {:.2f}, ".format(*found[-1]) + f"ε = {found[-1][0] / found[-1][1]:.2f}")
    figures = {"S": [s for s, _ in found], "S_max": [m for _, m in found], "ε": [s / m for s, m in found]}
    print(
        "median: "
        + ", ".join(f"{k} = {statistics.median(v):.2f} ({min(v):.2f} to {max(v):.2f})" for k, v in figures.items())
    )


if __name__ == "__main__":
    main()
