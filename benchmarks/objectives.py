"""The most used objectives on the quickstart's task, each trained to the goal, with a plot.

    python benchmarks/objectives.py [--steps 50] [--plot docs/objectives.png]

Every run is the quickstart's configuration with the settings below. Printed: held-out reward before and after, the first step at
which the mean reward of five steps reached the goal, and seconds; plotted: the reward of each step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path

from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics

ROOT = Path(__file__).parents[1]
GOAL = 0.9
SMOOTHED = 5
OBJECTIVES: dict[str, dict[str, object]] = {
    "GRPO (decoupled PPO)": {"loss_aggregation": "sequence", "objective.clip_high": 0.2},
    "DAPO": {"turns.truncated": "mask", "overlong_tokens": 64},
    "Dr. GRPO": {
        "advantage": "dr_grpo",
        "loss_aggregation.kind": "constant",
        "loss_aggregation.length": 48,
    },
    "RLOO": {"advantage": "rloo"},
    "GSPO": {
        "loss_aggregation": "sequence",
        "objective.kind": "gspo",
        "objective.clip_low": 3e-3,
        "objective.clip_high": 4e-3,
    },
    "PPO with a critic": {"advantage.kind": "gae", "advantage.critic_lr": 1e-3},
}


def options_of(settings: dict[str, object]) -> list[str]:
    """What is typed for settings, which are keys with a plain value each."""
    return [f"--{key}={value}" for key, value in settings.items()]


def smoothed(rewards: list[float]) -> list[float]:
    """The mean of each value and those before it, SMOOTHED at most."""
    windows = [rewards[max(0, end - SMOOTHED) : end] for end in range(1, len(rewards) + 1)]
    return [sum(window) / len(window) for window in windows]


def main() -> None:
    """Run them all, print a table, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "objectives.png")
    parser.add_argument("--only", nargs="*", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    args = parser.parse_args()
    curves: dict[str, list[float]] = {}
    print("objective              held-out before, after   goal at step   seconds")
    with tempfile.TemporaryDirectory(prefix="agentrl-objectives-") as scratch:
        tasks = Path(scratch) / "tasks"
        subprocess.run(
            [sys.executable, "-m", "agentrl.envs.calculator_env", str(tasks)], check=True, stdout=subprocess.DEVNULL
        )
        for name in args.only:
            run_dir = Path(scratch) / name.replace(" ", "_")
            settings: dict[str, object] = {
                "model.path": NANO,
                "tasks": tasks / "train.jsonl",
                "eval.tasks": tasks / "eval.jsonl",
                "run_dir": run_dir,
                "steps": args.steps,
                "eval.stop_at": 2,
                **{f"trainer.{key}": value for key, value in OBJECTIVES[name].items()},
            }
            words = ["-m", "agentrl", "train", "--config", "workflows/quickstart.toml", *options_of(settings)]
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=1800)
            summary = json.loads((run_dir / "summary.json").read_text())
            means = (row["reward_mean"] for row in read_metrics(run_dir))
            # A step in which no group counts goes on with the figure before it.
            carried = accumulate(means, lambda before, now: before if now is None else now, initial=0.0)
            rewards = curves[name] = list(carried)[1:]
            reached = [step for step, mean in enumerate(smoothed(rewards), 1) if step >= SMOOTHED and mean >= GOAL]
            print(
                f"{name:22s} {summary['eval_before']:10.3f}, {summary['eval_after']:.3f}"
                f" {reached[0] if reached else 'never':>14} {summary['wall_s']:12.0f}",
                flush=True,
            )
    plot(curves, args.plot)


def plot(curves: dict[str, list[float]], path: Path) -> None:
    """The smoothed reward of each step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, rewards in curves.items():
        axes.plot(range(1, len(rewards) + 1), smoothed(rewards), label=name)
    axes.axhline(GOAL, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("training step")
    axes.set_ylabel(f"reward, mean of {SMOOTHED} steps")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
