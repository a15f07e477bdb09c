"""Time to a goal on held-out tasks: the quickstart with other settings, in turn, on several seeds.

    python benchmarks/time_to_goal.py [--seeds 1 2 3] [--goal 0.9] [--settings rollout.drop_uniform_groups=false data.order=difficulty]
    python benchmarks/time_to_goal.py --mixed    # a third of 96 tasks are such sums; the others, of 7 to 10 terms, are too hard for nano

Each setting is a variant of workflows/quickstart.toml; a comma joins several keys to one variant. Every run evaluates the same 200
held-out sums of 2 to 4 terms every `--every` steps and ends with the first evaluation that reaches the goal. Printed of each run: the
seconds of training until then, without evaluations; its steps; the episodes and tokens that were generated for it; the last evaluation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.envs.reasoning import write_task_files
from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics, read_summary

ROOT = Path(__file__).parents[1]
MAX_RUN_S = 1800


class Cost(NamedTuple):
    """What a run needed."""

    seconds: float
    """Of training: steps, and the waits for their batches."""
    steps: int
    episodes: int
    tokens: int
    held_out: float


def write_tasks(folder: Path, *, mixed: bool) -> None:
    """Write the tasks to train on and those held out; no sum is in both."""
    sums = distinct_tasks(4200, seed=1)
    trained = sums[200:232] + distinct_tasks(64, seed=1, min_terms=7, max_terms=10) if mixed else sums[200:]
    write_task_files(folder, {"eval": sums[:200], "train": trained})


def train(run_dir: Path, tasks: Path, setting: str, seed: int, args: argparse.Namespace) -> Cost:
    """Train to the goal, or for so many steps. Raises CalledProcessError where a run fails."""
    options = {
        "seed": seed,
        "run-dir": run_dir,
        "steps": args.steps,
        "model": NANO,
        "tasks": tasks / "train.jsonl",
        "eval.tasks": tasks / "eval.jsonl",
        "eval.every": args.every,
        "eval.stop-at": args.goal,
        "trainer.checkpoint.every": args.steps,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    for key, _, value in (one.partition("=") for one in setting.split(",") if one):
        words += [f"--{key}", value]
    command = [sys.executable, "-m", "agentrl", "train", "--config", str(ROOT / "workflows" / "quickstart.toml")]
    with run_dir.with_suffix(".log").open("w") as log:
        subprocess.run([*command, *words], cwd=ROOT, stdout=log, stderr=log, check=True, timeout=MAX_RUN_S)
    rows, summary = read_metrics(run_dir), read_summary(run_dir)
    assert summary is not None
    seconds = sum(row["step_s"] for row in rows)
    return Cost(seconds, len(rows), rows[-1]["episodes_finished"], rows[-1]["tokens"], summary["eval_after"])


def main() -> None:
    """Run every setting on every seed in turn, and print a line for each run and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--settings", nargs="*", default=["rollout.drop_uniform_groups=false", "data.order=difficulty"])
    parser.add_argument("--mixed", action="store_true", help="most tasks are too hard")
    args = parser.parse_args()
    print("seed  seconds  steps  episodes    tokens  held out  setting", flush=True)
    costs: dict[str, list[Cost]] = {setting: [] for setting in ("", *args.settings)}
    with tempfile.TemporaryDirectory(prefix="agentrl-goal-") as scratch:
        tasks = Path(scratch) / "tasks"
        write_tasks(tasks, mixed=args.mixed)
        for seed in args.seeds:
            for number, setting in enumerate(costs):
                cost = train(Path(scratch) / f"{number}-{seed}", tasks, setting, seed, args)
                costs[setting].append(cost)
                shown = f"{cost.seconds:7.1f}  {cost.steps:5d}  {cost.episodes:8,d}  {cost.tokens:8,d}  {cost.held_out:8.3f}"
                print(f"{seed:4d}  {shown}  {setting or 'as it is'}", flush=True)
    for setting, own in costs.items():
        middle = [median(values) for values in zip(*own, strict=True)]
        print(json.dumps({"setting": setting or "as it is", **dict(zip(Cost._fields, middle, strict=True))}))


if __name__ == "__main__":
    main()
