"""Nothing that agentrl loads is unpickled: a hostile file, wherever one could lie, runs nothing."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from agentrl.config import TrainerConfig, load_config
from agentrl.engine.embedded.batching import BatchingEngine
from agentrl.engine.model_adapters import read_adapter
from agentrl.errors import CheckpointError, ConfigError
from agentrl.models import NANO
from agentrl.rollout.check_start import with_model
from agentrl.trainer.model.checkpoint import read_published
from agentrl.trainer.model.critic import Critic
from agentrl.trainer.model.ranks import Ranks
from agentrl.trainer.policy import Policy
from agentrl.trainer.sft import newest_checkpoint


class Hostile:
    """Makes a directory when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, (f"import os; os.makedirs({str(self.marker)!r}, exist_ok=True)",)


def write_plain(hostile: Hostile, path: Path) -> None:
    path.write_bytes(pickle.dumps(hostile))


def write_by_torch(hostile: Hostile, path: Path) -> None:
    content = io.BytesIO()
    torch.save(hostile, content)
    path.write_bytes(content.getvalue())


@pytest.fixture(params=[write_plain, write_by_torch])
def plant(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], None]:
    """Write the hostile file to a path, in each form of a pickle in turn."""

    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        request.param(Hostile(tmp_path / "it ran"), path)

    return write


def test_the_hostile_file_would_run(plant: Callable[[Path], None], tmp_path: Path) -> None:
    plant(tmp_path / "file")
    with suppress(Exception):
        torch.load(tmp_path / "file", weights_only=False)
    assert (tmp_path / "it ran").exists()


def test_no_loader_unpickles(plant: Callable[[Path], None], tmp_path: Path) -> None:
    policy = Policy(NANO, TrainerConfig())
    bare = tmp_path / "bare"  # a model whose weights are a pickle
    shutil.copytree(NANO, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin"):
        plant(bare / name)
    with pytest.raises(
        ConfigError, match=r"holds no weights as \.safetensors; copy the checkpoint again. Other forms may be pickles"
    ):
        with_model(load_config((), {}, model={"path": str(bare)}))
    loaders: list[Callable[[], object]] = [
        lambda: Policy(bare, TrainerConfig()),
        lambda: Critic(bare, TrainerConfig(advantage="gae")),
        lambda: BatchingEngine(bare),
        lambda: read_published(policy.model, bare, Ranks()),
    ]

    adapter = tmp_path / "adapter"
    for name in ("adapter_model.bin", "adapter_model.safetensors", "adapter_model.pt"):
        plant(adapter / name)
    loaders.append(lambda: read_adapter(adapter))

    fake = tmp_path / "fake"  # pickles under the names of safetensors
    shutil.copytree(NANO, fake)
    plant(fake / "model.safetensors")
    loaders += [lambda: Policy(fake, TrainerConfig()), lambda: read_published(policy.model, fake, Ranks())]

    for load in loaders:
        with pytest.raises(Exception):  # noqa: B017, PT011 -- each library has errors of its own
            load()
        assert not (tmp_path / "it ran").exists()


def test_no_checkpoint_of_others_is_unpickled(plant: Callable[[Path], None], tmp_path: Path) -> None:
    """Not one of torch.distributed.checkpoint's either, whose metadata is a pickle."""
    policy = Policy(NANO, TrainerConfig())
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000001"
    policy.save(checkpoint, NANO)
    plant(checkpoint / "optimizer" / ".metadata")
    plant(checkpoint / "critic" / ".metadata")
    plant(checkpoint / "scheduler.pt")
    policy.load(checkpoint)
    plant(checkpoint / "optimizer" / "state.safetensors")
    with pytest.raises(CheckpointError, match=r"state\.safetensors has \d+ bytes, and was written with"):
        policy.load(checkpoint)
    (checkpoint / "checkpoint.json").write_text(json.dumps({"step": 1, "optimizer_steps": 1}))
    with pytest.raises(CheckpointError, match="does not hold what was written"):
        policy.load(checkpoint)
    assert newest_checkpoint(tmp_path / "run") is None
    assert (tmp_path / "run" / "damaged" / "step-000001-1").is_dir()
    assert not (tmp_path / "it ran").exists()
