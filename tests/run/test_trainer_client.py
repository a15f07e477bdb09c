"""The trainer process as the run talks to it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread
from safetensors import safe_open

from agentrl.config import load_config
from agentrl.models import NANO
from agentrl.run.run_directory import write_config
from agentrl.run.run_lock import lock_run
from agentrl.store.store import Store
from agentrl.system.host import free_port
from tests.recorded_run import cancel_when_asked, trainer_of

pytestmark = pytest.mark.anyio


def prepared(run_dir: Path) -> int:
    """A run directory with its configuration and an empty store; the lock on it."""
    run_dir.mkdir()
    write_config(
        load_config(
            (), {"trainer.ranks": "2", "trainer.step_timeout_s": "60"}, run_dir=str(run_dir), model={"path": str(NANO)}
        )
    )
    with Store(run_dir / "store.sqlite"):
        return lock_run(run_dir)


def parameters_of(file: Path) -> int:
    with safe_open(file, "pt") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_who_is_cancelled_leaves_no_answer_for_the_next_and_two_ranks_send_whole_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    lock = await in_thread(prepared, run_dir)
    async with trainer_of(run_dir, lock=lock) as trainer:
        with anyio.CancelScope() as scope, monkeypatch.context() as patch:
            cancel_when_asked(trainer, scope, patch)
            await trainer.load(None)
        assert scope.cancelled_caught
        await trainer.join_weight_group("127.0.0.1", free_port(), 1, "weights", "gloo", 20)
        (bucket,) = await trainer.weight_buckets()
        sizes = sum(math.prod(shape) for shape in bucket["shapes"])
        assert sizes == await in_thread(parameters_of, NANO / "model.safetensors")
        await trainer.send_bucket(0)
        weights = await trainer.load(None)
        assert (weights.version, weights.path) == (0, tmp_path / "weights" / "v0")
    os.close(lock)
