"""Two roles over one model learn opposite things: one to avoid a digit that ends its reply, the other to say it at once, each as a LoRA adapter of its own.

    python benchmarks/two_roles.py [--steps 12] [--workers 0]

Both are asked the same. Printed for every step: the mean number of tokens of each role's replies, and how far the engine's logprobs are
from the trainer's under the adapter that answered.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import anyio

from agentrl import Episode, Reward, RunConfig, train
from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics
from agentrl.run.view import RunView

LIMIT = 24
"""Tokens of the longest reply."""
STOP = "5"
"""Where a reply ends: the untrained model gets there after about 16 tokens."""
WISHES = {"long": 1.0, "short": -1.0}
"""What a token of a reply is worth, by role."""


async def run(episode: Episode) -> Reward:
    """Ask both roles the same question, and reward each for the length of its reply."""
    lengths: dict[str, float] = {}
    for name, worth in WISHES.items():
        role = episode.role(name)
        reply = await role.client.chat.completions.create(
            model=role.model,
            messages=[{"role": "user", "content": f"{episode.task['n']} + 1 ="}],
            max_tokens=LIMIT,
            stop=[STOP],
        )
        assert reply.usage is not None
        lengths[name] = reply.usage.completion_tokens
        role.reward(worth * lengths[name] / LIMIT)
    return Reward(0.0, lengths)


def tasks() -> list[dict[str, int]]:
    """Return the questions."""
    return [{"n": n} for n in range(64)]


def configuration(run_dir: Path, steps: int, **changed: Any) -> RunConfig:
    """Return the configuration of a run. `changed`: sections in place of those here."""
    sections: dict[str, Any] = {
        "model": {"path": str(NANO)},
        "rollout": {"batch_size": 32, "group_size": 8, "max_staleness": 1},
        "trainer": {
            "lora": {"rank": 8, "roles": list(WISHES)},
            "optimizer": {"lr": 4e-3, "warmup_steps": 0},
            "advantage": "grpo",
        },
    }
    return RunConfig(run_dir=str(run_dir), steps=steps, **{**sections, **changed})


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(scratch) / "run"
        config = configuration(run_dir, args.steps)
        if args.workers:
            rollout = config.rollout.model_copy(update={"workers": args.workers})
            config = config.model_copy(update={"rollout": rollout, "workflow": __file__})
        workflow = None if args.workers else run
        anyio.run(lambda: train(config, workflow=workflow, tasks=tasks(), view=RunView(config)))
        for step in read_metrics(run_dir):
            lengths = "  ".join(
                f"{name} {step.get(f'role_{name}_reply_tokens_mean', 0):5.1f} tokens" for name in WISHES
            )
            print(f"step {step['step']:3d}  {lengths}  mean |Δlogprob| {step.get('logprob_mismatch_mean_abs', 0):.1e}")


if __name__ == "__main__":
    main()
