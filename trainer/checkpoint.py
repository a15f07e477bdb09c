"""A checkpoint: a Hugging Face model directory, usable as `--model` and by SGLang, with the optimizer beside it.

    model.safetensors, config.json, tokenizer files      the model, whole; a LoRA adapter merged in
    adapter/                                             the adapter, where one is trained
    optimizer/                                           torch.distributed.checkpoint: loads on any number of ranks
    critic/                                              the critic and its optimizer, where there is one, in the same form
    checkpoint.json                                      step, optimizer steps

It is written to `NAME.partial` and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.engine.adapter import ADAPTER_WEIGHTS, read_adapter
from agentrl.errors import ConfigError
from agentrl.trainer.critic import Critic
from agentrl.trainer.lora import is_adapted, merged, write_adapter
from agentrl.trainer.ranks import Ranks, gathered


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that an optimizer moves."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_weights(model: Any, directory: Path, ranks: Ranks) -> None:
    """Write what is trained into a new `directory`, there whole or not at all: the weights as safetensors with the model's
    config, or the adapter alone."""
    weights = gathered(trained_parameters(model).items(), ranks, lambda tensor: tensor.cpu().contiguous())
    if ranks.rank == 0:
        with _whole_directory(directory) as partial:
            if is_adapted(model):
                write_adapter(model, weights, partial)
            else:
                _write_model(model, weights, partial)
    ranks.same(None)  # no rank goes on before the files are there


def staged_checkpoint(
    directory: Path,
    *,
    model: Any,
    wrapped: nn.Module,
    optimizer: torch.optim.Optimizer,
    files: Iterable[Path],
    state: dict[str, int],
    critic: Critic | None,
    ranks: Ranks,
) -> Callable[[], None]:
    """Copy all that a checkpoint holds; returns what writes it, for another thread, while training goes on.

    `wrapped` holds `model` as the optimizer knows it; `files` are copied beside the weights.
    """
    weights = gathered(model.named_parameters(), ranks, lambda tensor: tensor.cpu().clone())
    shards = {"optimizer": _copied(get_optimizer_state_dict(wrapped, optimizer))}
    if critic is not None:
        shards["critic"] = _copied(_critic_state(critic))

    def write() -> None:
        partial = directory.with_name(directory.name + ".partial")
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        ranks.wait_for_writers()
        with _one_process_is_meant():
            for name, content in shards.items():
                save_shards(content, checkpoint_id=partial / name, process_group=ranks.writers)
        if ranks.rank == 0:
            _write_model(model, merged(model, weights), partial)
            if is_adapted(model):
                (partial / "adapter").mkdir()
                write_adapter(model, weights, partial / "adapter")
            for file in files:
                if not (partial / file.name).exists():
                    shutil.copyfile(file, partial / file.name)  # its content, and not who may read the original
            (partial / "checkpoint.json").write_text(json.dumps(state) + "\n")
            _flush(partial)
            shutil.rmtree(directory, ignore_errors=True)
            partial.rename(directory)
        ranks.wait_for_writers()

    return write


def _write_model(model: Any, weights: dict[str, Tensor], directory: Path) -> None:
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)


@contextmanager
def _whole_directory(directory: Path) -> Iterator[Path]:
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def _flush(directory: Path) -> None:
    """Have the disk hold the files before anything says that they are there."""
    for path in [*(file for file in directory.rglob("*") if file.is_file()), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value


def read_checkpoint(model: nn.Module, directory: Path) -> None:
    """Load a checkpoint's weights, or its adapter, into a model, spread over ranks or not. Raises ConfigError when the checkpoint
    has an adapter and the model none, or the other way round."""
    has, wants = (directory / "adapter").is_dir(), is_adapted(model)
    if has != wants:
        raise ConfigError(
            f"{directory} was trained {'with' if has else 'without'} an adapter, and trainer.lora_rank asks for "
            f"{'one' if wants else 'none'}; go on as the run began, or begin a new one with --model {directory}"
        )
    read_published(model, directory / "adapter" if has else directory)


def read_published(model: nn.Module, directory: Path) -> None:
    """Load what `write_weights` wrote. Raises ConfigError for an adapter of another rank or other layers."""
    adapted = is_adapted(model)
    weights = read_adapter(directory) if adapted else load_file(directory / "model.safetensors")
    parameters = trained_parameters(model)
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    if adapted and shapes != {name: tensor.shape for name, tensor in weights.items()}:
        raise ConfigError(
            f"{directory / ADAPTER_WEIGHTS} is of another trainer.lora_rank, or of other trainer.lora_targets"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            _fill(parameter, weights[name])


def read_optimizer(wrapped: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Load a checkpoint's optimizer, made by any number of ranks."""
    state = get_optimizer_state_dict(wrapped, optimizer)
    with _one_process_is_meant():
        load_shards(state, checkpoint_id=directory / "optimizer")
    set_optimizer_state_dict(wrapped, optimizer, state)


def read_critic(critic: Critic, directory: Path) -> None:
    """Load a checkpoint's critic with its optimizer, made by any number of ranks."""
    state = _critic_state(critic)
    with _one_process_is_meant():
        load_shards(state, checkpoint_id=directory / "critic")
    set_model_state_dict(critic, state["weights"])
    set_optimizer_state_dict(critic, critic.optimizer, state["optimizer"])


def _critic_state(critic: Critic) -> dict[str, Any]:
    return {
        "weights": get_model_state_dict(critic),
        "optimizer": get_optimizer_state_dict(critic, critic.optimizer),
    }


def read_state(directory: Path) -> dict[str, int]:
    """A checkpoint's numbers."""
    state: dict[str, int] = json.loads((directory / "checkpoint.json").read_text())
    return state


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _fill(parameter: Tensor, tensor: Tensor) -> None:
    if isinstance(parameter, DTensor):
        own = distribute_tensor(tensor, parameter.device_mesh, parameter.placements).to_local()
        parameter.to_local().copy_(own)
    else:
        parameter.copy_(tensor)
