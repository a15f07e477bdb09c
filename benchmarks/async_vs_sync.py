"""How much asynchrony gains: `python benchmarks/async_vs_sync.py`.

One job, trained twice to the same number of episodes on a workload with long-tailed reply lengths and tool times
(long_tail_workflow.py): synchronously (η = 0) and asynchronously (η = 2). Prints the throughput ratio S, the bound S_max
that the synchronous run's own trace implies (agentrl/run/speedup.py), and their quotient ε.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.speedup import ideal_gain

BATCH = 64
SLOTS = 64
WORKFLOW = Path(__file__).with_name("long_tail_workflow.py")


@dataclass
class Run:
    """What one run left behind."""

    steps: list[dict[str, Any]]
    summary: dict[str, Any]
    durations_s: list[float]
    """Of its finished episodes."""

    @property
    def elapsed_s(self) -> float:
        return sum(float(s["step_s"]) for s in self.steps)

    @property
    def episodes_per_s(self) -> float:
        return sum(int(s["episodes"]) for s in self.steps) / self.elapsed_s

    def mean(self, name: str) -> float:
        return statistics.fmean(float(s[name]) for s in self.steps)


def train(directory: Path, staleness: int, steps: int, window: int) -> Run:
    """One run, through the command line as users start it."""
    run_dir = directory / f"eta-{staleness}"
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
    steps_taken = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    db = sqlite3.connect(run_dir / "store.sqlite")
    durations = [row[0] for row in db.execute("SELECT duration_s FROM episodes WHERE reason = 'finished'")]
    db.close()
    return Run(steps_taken, json.loads((run_dir / "summary.json").read_text()), durations)


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--window", type=int, default=16, help="W of the asynchronous run, in groups; a batch has 8")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        directory = Path(name)
        for part, tasks in (("eval", distinct_tasks(200, seed=7)), ("train", distinct_tasks(2000, seed=1_000_000))):
            (directory / f"{part}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        sync, overlapped = (train(directory, staleness, args.steps, args.window) for staleness in (0, 2))

    for label, run in (("η = 0", sync), ("η = 2", overlapped)):
        s = run.summary
        print(
            f"{label}: {run.episodes_per_s:6.2f} episodes/s over {args.steps} steps of {BATCH}; "
            f"staleness mean {s['staleness_mean']:.2f}, max {s['staleness_max']:.0f} (bound {s['staleness_bound']}); "
            f"reward {s['eval_before']:.3f} → {s['eval_after']:.3f}"
        )
        print(
            f"       a step: waited {run.mean('wait_s'):.2f} s, trained {run.mean('train_s'):.2f} s, "
            f"paused {1000 * run.mean('pause_s'):.0f} ms; episode mean {statistics.fmean(run.durations_s):.2f} s, "
            f"longest {max(run.durations_s):.1f} s; {s['tokens_in_interrupted_replies']} tokens in interrupted replies"
        )
    rollout_s = BATCH * statistics.fmean(sync.durations_s) / SLOTS
    trace = [sync.mean(name) for name in ("wait_s", "train_s", "pause_s")]
    kappa, rho, w = (seconds / rollout_s for seconds in trace)
    bound = ideal_gain(rollout_s, *trace)
    gain = overlapped.episodes_per_s / sync.episodes_per_s
    print(f"R = {rollout_s:.2f} s, κ = {kappa:.2f}, ρ = {rho:.2f}, w = {w:.4f}")
    print(f"S = {gain:.2f}, S_max = {bound:.2f}, ε = {gain / bound:.2f}")


if __name__ == "__main__":
    main()
