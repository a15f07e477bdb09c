"""A checkpoint: a Hugging Face model directory, usable as `--model` and by SGLang, with the optimizer beside it.

    model.safetensors, config.json, tokenizer files      the model, whole
    optimizer/                                           torch.distributed.checkpoint: loads on any number of ranks
    critic.pt                                            where there is a critic
    checkpoint.json                                      step, optimizer steps

It is written to `NAME.partial` and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.trainer.ranks import Ranks, whole


def write_weights(model: Any, directory: Path, ranks: Ranks) -> None:
    """Write the weights as safetensors, with the model's config, into a new `directory`: there whole, or not at all."""
    partial = directory.with_name(directory.name + ".partial")
    weights = {name: whole(parameter.detach()).contiguous() for name, parameter in model.named_parameters()}
    if ranks.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        model.config.save_pretrained(partial)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    ranks.same(None)  # no rank goes on before the files are there


def write_checkpoint(
    directory: Path,
    *,
    model: Any,
    wrapped: nn.Module,
    optimizer: torch.optim.Optimizer,
    files: Iterable[Path],
    state: dict[str, int],
    critic: dict[str, Any] | None,
    ranks: Ranks,
) -> None:
    """Write a checkpoint. `wrapped` holds `model` as the optimizer knows it; `files` are copied beside the weights."""
    partial = directory.with_name(directory.name + ".partial")
    write_weights(model, partial, ranks)
    with _one_process_is_meant():
        save_shards(get_optimizer_state_dict(wrapped, optimizer), checkpoint_id=partial / "optimizer")
    if ranks.rank == 0:
        for file in files:
            if not (partial / file.name).exists():
                shutil.copy(file, partial)
        if critic is not None:
            torch.save(critic, partial / "critic.pt")
        (partial / "checkpoint.json").write_text(json.dumps(state) + "\n")
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    ranks.same(None)


def read_weights(model: nn.Module, directory: Path) -> None:
    """Load a checkpoint's weights into a model, spread over ranks or not."""
    weights = load_file(directory / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_like(weights[name], parameter))


def read_optimizer(wrapped: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Load a checkpoint's optimizer, made by any number of ranks."""
    state = get_optimizer_state_dict(wrapped, optimizer)
    with _one_process_is_meant():
        load_shards(state, checkpoint_id=directory / "optimizer")
    set_optimizer_state_dict(wrapped, optimizer, state)


def read_state(directory: Path) -> dict[str, int]:
    """A checkpoint's numbers."""
    state: dict[str, int] = json.loads((directory / "checkpoint.json").read_text())
    return state


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _like(tensor: Tensor, parameter: Tensor) -> Tensor:
    if isinstance(parameter, DTensor):
        return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)
    return tensor
