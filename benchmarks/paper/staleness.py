"""How much staleness training bears, decoupled PPO against PPO that is not (AReaL, arXiv 2505.24298): held-out reward by η.

    python benchmarks/paper/staleness.py --out runs/staleness.jsonl [--plot docs/pictures/paper-staleness.svg]

A row of --out is a finished run, and a run that has a row is not made again. The table, the plot and the means are of what is there.

A trainer as fast as that of the nano model takes a batch while it is fresh: staleness stays far below η. So the trainer is held: it takes a
batch once everything that the gate allows has ended. That is the run of an endlessly slow trainer, in less time: batch k is of version
k − η, or of the first weights. The unbounded one is trained on what the first weights sampled alone. No group is dropped, so that all
runs train on as many episodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import anyio

import agentrl
from agentrl.config import load_config
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.rollout.controller import Batch, Controller
from agentrl.run.view import RunView

ROOT = Path(__file__).parents[2]
UNBOUNDED = "inf"
PROXIMAL = {"decoupled": "recompute", "naive": "behaviour"}
"""What `trainer.objective.proximal` is for each objective."""
PAPER = {"0": 42.0, "1": 42.1, "2": 41.8, "4": 42.2, "8": 41.0, "16": 38.7, UNBOUNDED: 36.9}
"""AIME24 of the decoupled objective in the paper, by η."""
PAPER_NAIVE = {"4": 23.3}
take_batch = Controller.next_batch


async def take_when_full(controller: Controller) -> Batch | None:
    """Take a batch once all that the gate allows has been started and has ended."""
    await controller._changed.wait_for(lambda: not controller.gate.can_start() and not controller._running_groups)
    return await take_batch(controller)


def train(directory: Path, eta: str, objective: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train once, and return its row."""
    run_dir = directory / f"{eta}-{objective}-{seed}"
    settings = {
        "run_dir": run_dir,
        "model.path": NANO,
        "tasks": directory / "train.jsonl",
        "eval.tasks": directory / "eval.jsonl",
        "eval.every": args.steps,
        "seed": seed,
        "steps": args.steps,
        "rollout.batch_size": args.batch_size,
        "rollout.max_staleness": args.steps - 1 if eta == UNBOUNDED else eta,
        "rollout.window": 1,
        "rollout.drop_uniform_groups": "false",
        "trainer.objective.proximal": PROXIMAL[objective],
        "trainer.minibatches": args.minibatches,
        "trainer.optimizer.lr": args.lr,
        "trainer.checkpoint.every": args.steps,
    }
    config = load_config(ROOT / "workflows" / "quickstart.toml", {name: str(value) for name, value in settings.items()})
    run = anyio.run(lambda: agentrl.train(config, view=RunView(config)))
    if run.status != "finished" or run.summary is None:
        raise SystemExit(f"the run {run_dir} ended {run.status}; start the program again to go on with the next one")
    ages = [step["staleness_mean"] for step in run.metrics]
    return {
        "staleness": statistics.fmean(ages),
        "staleness_last": ages[-1],
        "before": run.summary["eval_before"],
        "after": run.summary["eval_after"],
        "last_rewards": statistics.fmean(step["batch_reward_mean"] for step in run.metrics[-10:]),
        "clipped": statistics.fmean(step.get("clipped_share", 0.0) for step in run.metrics),
        "wall_s": run.summary["wall_s"],
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the held-out reward by η: the mean over seeds, and their range."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    names = [eta for eta in PAPER if any(row["eta"] == eta for row in rows)]
    for objective in PROXIMAL:
        found = [[r["after"] for r in rows if (r["eta"], r["objective"]) == (eta, objective)] for eta in names]
        points = [(number, values) for number, values in enumerate(found) if values]
        means = [statistics.fmean(values) for _, values in points]
        ranges = [
            [mean - min(v) for mean, (_, v) in zip(means, points, strict=True)],
            [max(v) - mean for mean, (_, v) in zip(means, points, strict=True)],
        ]
        axes.errorbar([number for number, _ in points], means, ranges, marker="o", capsize=3, label=objective)
    axes.set_xticks(range(len(names)), ["∞" if name == UNBOUNDED else name for name in names])
    axes.set(xlabel="staleness allowed, η", ylabel="held-out reward", ylim=(0, 1.02))
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Make the runs that are missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each finished run")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    parser.add_argument("--eta", nargs="*", choices=list(PAPER), default=list(PAPER), help="none: print what is there")
    parser.add_argument("--objectives", nargs="*", choices=list(PROXIMAL), default=list(PROXIMAL))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--minibatches", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--held-out", type=int, default=200, help="held-out tasks")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in ("steps", "batch_size", "minibatches", "lr", "held_out")}
    parts = {"eval": distinct_tasks(args.held_out, seed=7), "train": distinct_tasks(2000, seed=1_000_000)}
    Controller.next_batch = take_when_full  # type: ignore[method-assign, assignment]
    for seed in args.seeds:
        for eta in args.eta:
            for objective in args.objectives:
                key = {"eta": eta, "objective": objective, "seed": seed, **sizes}
                if any(key.items() <= row.items() for row in rows_of(args.out)):
                    continue
                with tempfile.TemporaryDirectory(prefix="agentrl-staleness-") as name:
                    for part, tasks in parts.items():
                        (Path(name) / f"{part}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
                    row = key | train(Path(name), eta, objective, seed, args)
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    rows = [row for row in rows_of(args.out) if sizes.items() <= row.items()]
    print("   η  objective  staleness  held-out reward (range)  seeds  the paper's AIME24")
    for eta in PAPER:
        for objective in PROXIMAL:
            own = [row for row in rows if (row["eta"], row["objective"]) == (eta, objective)]
            if own:
                after = [row["after"] for row in own]
                paper = PAPER[eta] if objective == "decoupled" else PAPER_NAIVE.get(eta, "")
                print(
                    f"{eta:>4}  {objective:<9} {statistics.fmean(row['staleness'] for row in own):10.2f}"
                    f"  {statistics.fmean(after):.3f} ({min(after):.3f}-{max(after):.3f}) {len(own):14d}  {paper}"
                )
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
