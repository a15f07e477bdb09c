"""One rank of a trainer on a fixed batch: `torch.distributed.run ... ranks_program.py KIND FOLDER`. test_ranks.py reads what it leaves."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.model.ranks import Ranks, join_ranks
from agentrl.trainer.policy import Policy
from tests.trainer.random_trees import random_tree

COMMON: dict[str, Any] = {"optimizer": {"lr": 1e-4, "warmup_steps": 0}, "minibatches": 2, "tokens_per_pack": 60}
SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {"advantage": "reinforce_pp", "kl": {"kind": "reward", "coef": 0.01}},
    "critic": {"advantage": {"kind": "gae", "critic_lr": 1e-3}, "objective": "m2po", "importance": "none"},
    "adapter": {
        "lora": {"rank": 4},
        "optimizer": {"lr": 1e-3, "warmup_steps": 0},
        "kl": {"kind": "loss", "coef": 0.01},
    },
}


def steps(
    kind: str, folder: Path, ranks: Ranks, *, resume: Path | None = None, count: int = 2
) -> list[dict[str, float]]:
    """Train on the batch, leave the weights and a checkpoint; what each step said."""
    torch.set_num_threads(1)
    offload = ranks.size > 1 and kind != "whole"
    policy = Policy(NANO, TrainerConfig(**{**COMMON, **SETTINGS[kind]}, offload=offload), ranks)
    if resume is not None:
        policy.load(resume)
    rng = random.Random(7)
    sequences = [s for _ in range(6) for s in random_tree(rng, depth=3)]
    said = []
    published = {policy.version: policy.publish(folder)}
    for _ in range(count):
        result = policy.step(sequences)
        numbers = {"loss": result.loss, "grad_norm": result.grad_norm, "computed_tokens": result.computed_tokens}
        said.append(
            {**numbers, **vars(result.stats), "log_weight": float(result.log_importance_weights.sum()), **result.critic}
        )
        published[policy.version] = policy.publish(folder)
    compared = policy.mismatch(sequences, published)
    said.append(vars(compared) if compared else {})
    policy.save(folder / "checkpoint", NANO)
    return said


if __name__ == "__main__":
    joined = join_ranks(60)
    found = steps(sys.argv[1], Path(sys.argv[2]), joined)
    if joined.rank == 0:
        (Path(sys.argv[2]) / "said.json").write_text(json.dumps(found))
