"""A checkpoint: a Hugging Face model directory, usable as `--model` and by SGLang, with the optimizer beside it.

    model.safetensors, config.json, tokenizer files      the model, whole; a LoRA adapter merged in
    adapter/                                             the adapter, where one is trained
    optimizer/state.safetensors                          what AdamW remembers, as PARAMETER.KEY; loads on any number of ranks
    critic/model.safetensors, optimizer.safetensors      the critic and its optimizer, where there is one
    checkpoint.json                                      the manifest (`agentrl.rollout.manifest`): steps, digests, checksums

It is written to `NAME.partial` and renamed, so that it is there whole or not at all. No file of it is a pickle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.engine.adapter import ADAPTER_WEIGHTS, name_in_model, read_adapter
from agentrl.errors import ConfigError
from agentrl.machine.disk import sync, sync_tree
from agentrl.machine.whole import whole_directory
from agentrl.rollout.manifest import Manifest, StateOnDisk, check_files, write_manifest
from agentrl.trainer.model.critic import Critic
from agentrl.trainer.model.digest import digest
from agentrl.trainer.model.lora import is_adapted, merged_weights, write_adapter
from agentrl.trainer.model.ranks import Ranks, gather_full_tensors


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that an optimizer moves, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_weights(model: Any, directory: Path, ranks: Ranks) -> None:
    """Write what is trained, there whole or not at all.

    Args:
        model: The model. All ranks must call it together.
        directory: A new directory: for the weights as safetensors with the model's config, or for the adapter alone.
        ranks: The trainer's ranks.
    """
    weights = gather_full_tensors(trained_parameters(model).items(), ranks, lambda tensor: tensor.cpu().contiguous())
    if ranks.rank == 0:
        with whole_directory(directory) as partial:
            if is_adapted(model):
                write_adapter(model, weights, partial)
            else:
                _write_model(model, weights, partial)
    ranks.broadcast_object(None)  # no rank goes on before the files are there


def trained_state(model: nn.Module, optimizer: torch.optim.Optimizer, critic: Critic | None) -> dict[str, Tensor]:
    """Return all that training changes, by name.

    Args:
        model: The model.
        optimizer: Its optimizer.
        critic: The critic with its own, where there is one.

    Returns:
        The trained parameters, what their optimizer remembers, and the critic's.
    """
    state = {**_named("model", trained_parameters(model)), **_named("optimizer", optimizer_state(model, optimizer))}
    if critic is not None:
        state |= _named("critic.model", dict(critic.named_parameters()))
        state |= _named("critic.optimizer", optimizer_state(critic, critic.optimizer))
    return state


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what an optimizer remembers of the trained parameters.

    Args:
        model: The model.
        optimizer: Its optimizer.

    Returns:
        Tensors by PARAMETER.KEY; {} before its first step.
    """
    return {
        f"{name}.{key}": value
        for name, parameter in trained_parameters(model).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def snapshot_checkpoint(
    directory: Path,
    *,
    model: Any,
    optimizer: torch.optim.Optimizer,
    files: Iterable[Path],
    manifest: Manifest,
    critic: Critic | None,
    ranks: Ranks,
) -> Callable[[], None]:
    """Copy all that a checkpoint holds. Rank 0 copies one full tensor after the other; the others do nothing more.

    Args:
        directory: Where the checkpoint is to be.
        model: The model.
        optimizer: Its optimizer.
        files: Files that are copied beside the weights.
        manifest: The manifest.
        critic: The critic, where there is one.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        What writes the checkpoint, for another thread, while training goes on. On ranks other than 0 it does nothing.
    """

    def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return gather_full_tensors(tensors.items(), ranks, lambda tensor: tensor.to("cpu", copy=True).contiguous())

    weights = copied(dict(model.named_parameters()))
    beside = {"optimizer/state.safetensors": copied(optimizer_state(model, optimizer))}
    if critic is not None:
        beside["critic/model.safetensors"] = copied(dict(critic.named_parameters()))
        beside["critic/optimizer.safetensors"] = copied(optimizer_state(critic, critic.optimizer))

    def write() -> None:
        if ranks.rank:
            return
        with whole_directory(directory) as partial:
            for name, tensors in beside.items():
                (partial / name).parent.mkdir(exist_ok=True)
                save_file(tensors, partial / name)
            _write_model(model, merged_weights(model, weights), partial)
            if is_adapted(model):
                (partial / "adapter").mkdir()
                write_adapter(model, weights, partial / "adapter")
            for file in files:
                if not (partial / file.name).exists():
                    shutil.copyfile(file, partial / file.name)  # its content, and not who may read the original
            write_manifest(partial, manifest)
            sync_tree(partial)  # before anything says that it is there
        sync(directory.parent)

    return write


def _write_model(model: Any, weights: dict[str, Tensor], directory: Path) -> None:
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)


def read_checkpoint(
    directory: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, critic: Critic | None, ranks: Ranks
) -> Manifest:
    """Load a checkpoint, made by any number of ranks. Nothing is loaded unless every file is what was written.

    Args:
        directory: The checkpoint.
        model: What its weights go into.
        optimizer: What its optimizer state goes into.
        critic: What the critic's goes into, where there is one.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        The manifest.

    Raises:
        CheckpointError: It is damaged, and this is rank 0.
        RankZeroError: It is damaged, and this is another rank.
        ConfigError: It does not fit the model and the configuration.
    """
    manifest = ranks.from_rank_zero(partial(check_files, directory))
    _read_weights(model, directory)
    _read_optimizer_state(model, optimizer, directory / "optimizer" / "state.safetensors")
    if critic is not None:
        if not (directory / "critic").is_dir():
            raise ConfigError(f'{directory} was trained without a critic, and `trainer.advantage.kind` = "gae" has one')
        weights = load_file(directory / "critic" / "model.safetensors")
        _copy_all(dict(critic.named_parameters()), weights, directory / "critic")
        _read_optimizer_state(critic, critic.optimizer, directory / "critic" / "optimizer.safetensors")
    return manifest


def state_on_disk(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield what a checkpoint holds of `trained_state`, one tensor at a time.

    Args:
        directory: The checkpoint.

    Yields:
        Names and tensors.
    """
    adapted = (directory / "adapter").is_dir()
    files = {
        "model": directory / ("adapter/" + ADAPTER_WEIGHTS if adapted else "model.safetensors"),
        "optimizer": directory / "optimizer" / "state.safetensors",
        "critic.model": directory / "critic" / "model.safetensors",
        "critic.optimizer": directory / "critic" / "optimizer.safetensors",
    }
    for prefix, file in files.items():
        if prefix.startswith("critic") and not file.is_file():
            continue
        with safe_open(file, "pt") as saved:
            for name in saved.keys():  # noqa: SIM118
                own = name_in_model(name) if adapted and prefix == "model" else name
                yield f"{prefix}.{own}", saved.get_tensor(name)


def read_state(directory: Path) -> StateOnDisk:
    """Read what the tensors of a checkpoint say, with the digest that a trainer makes of them: what an audit compares.

    Args:
        directory: The checkpoint.

    Returns:
        The digest, and the steps that the optimizer counts.
    """
    with safe_open(directory / "optimizer" / "state.safetensors", "pt") as saved:
        counts = {int(saved.get_tensor(name)) for name in saved.keys() if name.endswith(".step")}  # noqa: SIM118
    return StateOnDisk(digest(state_on_disk(directory), Ranks()), frozenset(counts))


def _read_weights(model: nn.Module, directory: Path) -> None:
    has, wants = (directory / "adapter").is_dir(), is_adapted(model)
    if has != wants:
        raise ConfigError(
            f"{directory} was trained {'with' if has else 'without'} an adapter, and `trainer.lora` asks for "
            f"{'one' if wants else 'none'}; go on as the run began, or begin a new one with `model.path` = {directory}"
        )
    read_published(model, directory / "adapter" if has else directory)


def read_published(model: nn.Module, directory: Path) -> None:
    """Load what `write_weights` wrote.

    Args:
        model: What the weights go into.
        directory: Where they are.

    Raises:
        ConfigError: They are an adapter of another rank or other layers, or do not fit the model.
    """
    adapted = is_adapted(model)
    weights = read_adapter(directory) if adapted else load_file(directory / "model.safetensors")
    parameters = trained_parameters(model)
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    if adapted and shapes != {name: tensor.shape for name, tensor in weights.items()}:
        raise ConfigError(
            f"{directory / ADAPTER_WEIGHTS} is of another `trainer.lora.rank`, or of other `trainer.lora.targets`"
        )
    _copy_all(parameters, weights, directory)


def _read_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path) -> None:
    """Load what an optimizer remembered. How it goes on is as it was made: rates and decay come from the configuration."""
    optimizer.state.clear()
    with safe_open(file, "pt") as saved:
        names = set(saved.keys())
        for name, parameter in trained_parameters(model).items():
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{key}" in names]
            for key in keys:
                tensor = saved.get_tensor(f"{name}.{key}")
                if key != "step":  # a number, which stays on the CPU
                    tensor, saved_tensor = torch.zeros_like(parameter), tensor
                    _copy_into(tensor, saved_tensor)
                optimizer.state[parameter][key] = tensor


def _copy_all(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], directory: Path) -> None:
    for name, parameter in parameters.items():
        if name not in tensors or tensors[name].shape != parameter.shape:
            raise ConfigError(f"{directory} does not fit the model: {name} is not in it, or of another shape")
    for name, parameter in parameters.items():
        _copy_into(parameter, tensors[name])


@torch.no_grad()
def _copy_into(parameter: Tensor, tensor: Tensor) -> None:
    if isinstance(parameter, DTensor):
        own = distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(own.to_local())  # every rank has read the tensor, and takes its own part
    else:
        parameter.copy_(tensor)
