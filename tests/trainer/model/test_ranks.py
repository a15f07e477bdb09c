"""Several ranks give the loss, the gradients and the weights of one, and each other's checkpoints."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from safetensors.torch import load_file

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.model.ranks import Ranks, join_ranks
from agentrl.trainer.policy import Policy
from tests.trainer.model.ranks_program import steps
from tests.trainer.random_trees import random_tree

ROOT = Path(__file__).parents[3]


def test_one_process_that_offloads_gives_the_weights_of_one_that_does_not(tmp_path: Path) -> None:
    ranks = join_ranks(60, offload=True)
    try:
        batch = random_tree(random.Random(7), depth=3)
        norms = []
        for offload in (False, True):
            folder = tmp_path / str(offload)
            policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}, offload=offload), ranks)
            policy.step(batch)
            policy.save(folder, NANO)
            policy.load(folder)
            norms.append(policy.step(batch).grad_norm)
            policy.publish(folder)
    finally:
        dist.destroy_process_group()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    one, other = (load_file(tmp_path / name / "v2" / "model.safetensors") for name in ("False", "True"))
    for name in one:
        assert float((one[name] - other[name]).abs().max()) < 1e-6


def weights_of(published: Path) -> Path:
    (file,) = published.glob("*.safetensors")
    return file


OTHERS = [
    pytest.param(kind, count, marks=[pytest.mark.soak, pytest.mark.timeout(300)])
    for kind, count in (("whole", 4), ("adapter", 2))
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("critic", 2), *OTHERS])
def test_ranks_give_the_loss_gradients_and_weights_of_one_process(tmp_path: Path, kind: str, count: int) -> None:
    spread, alone = tmp_path / "spread", tmp_path / "alone"
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [*elastic, "-m", "tests.trainer.model.ranks_program", kind, str(spread)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads((spread / "said.json").read_text())
    expected = steps(kind, alone, Ranks())
    for theirs, own in zip(said, expected, strict=True):
        assert theirs.keys() == own.keys()
        for name, value in own.items():
            assert theirs[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    one, other = (load_file(weights_of(folder / "v2")) for folder in (spread, alone))
    assert one.keys() == other.keys()
    for name in one:
        assert float((one[name] - other[name]).abs().max()) < 1e-5

    # One process goes on from the checkpoint of several, weights and optimizer.
    resumed = steps(kind, tmp_path / "resumed", Ranks(), resume=spread / "checkpoint", count=1)
    straight = steps(kind, tmp_path / "straight", Ranks(), count=3)
    assert resumed[0]["grad_norm"] == pytest.approx(straight[2]["grad_norm"], rel=1e-4)
    ours, theirs = (load_file(weights_of(tmp_path / name / "v3")) for name in ("resumed", "straight"))
    for name in ours:
        assert float((ours[name] - theirs[name]).abs().max()) < 2e-5
