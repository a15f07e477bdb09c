"""A checkpoint: a Hugging Face model directory, usable as `--model` and by SGLang, with the optimizer beside it.

    model.safetensors, config.json, tokenizer files      the model, whole; a LoRA adapter merged in, those of roles not
    adapter/                                             the adapter, where one is trained for all
    optimizer/state.safetensors                          what AdamW remembers, as PARAMETER.KEY; loads on any number of ranks
    critic/model.safetensors, optimizer.safetensors      the critic and its optimizer, where there is one
    roles/NAME/                                          the adapter of each role that has its own, with its optimizer/ and critic/
    checkpoint.json                                      the manifest (`agentrl.store.manifest`): steps, digests, checksums

It is written to `NAME.partial` and renamed, so that it is there whole or not at all. No file of it is a pickle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agentrl.engine.adapters import ADAPTER_WEIGHTS, ROLES, role_folders
from agentrl.engine.model_adapters import read_adapter
from agentrl.errors import ConfigError
from agentrl.store.manifest import Manifest, check_files, write_manifest
from agentrl.system.files import atomic_dir, sync, sync_tree
from agentrl.trainer.model.critic import Critic
from agentrl.trainer.model.lora import base_weights, check_alpha, is_adapted, merged_weights, write_adapter
from agentrl.trainer.model.ranks import Ranks, gather_full_tensors

OPTIMIZER_STATE = ("exp_avg", "exp_avg_sq")
"""What AdamW remembers of a parameter, beside the number of its steps."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that an optimizer moves, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True)
class PolicyState:
    """The part of a checkpoint that belongs to one policy: the only one, or one role's, whose model shares its base with the others'."""

    model: Any
    optimizer: torch.optim.Optimizer
    critic: Critic | None = None


States = Mapping[str, PolicyState]
"""The policies of a trainer by role; the only one by ""."""


def write_weights(models: Mapping[str, Any], directory: Path, ranks: Ranks) -> None:
    """Write what is trained, there whole or not at all.

    Args:
        models: The model of each role, of the only policy by "". All ranks must call it together.
        directory: A new directory: for the weights as safetensors with the model's config, for the adapter alone, or for one of each role
            (`agentrl.engine.adapters`).
        ranks: The trainer's ranks.
    """
    weights = {
        role: gather_full_tensors(trained_parameters(model).items(), ranks, lambda tensor: tensor.cpu().contiguous())
        for role, model in models.items()
    }
    if ranks.rank == 0:
        with atomic_dir(directory) as partial:
            for role, model in models.items():
                if is_adapted(model):
                    write_adapter(model, weights[role], _made(_folder(partial, role)))
                else:
                    _write_model(model, weights[role], partial)
    ranks.broadcast_object(None)  # no rank goes on before the files are there


def _folder(directory: Path, role: str) -> Path:
    return directory / ROLES / role if role else directory


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


def optimizer_steps(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps an optimizer has taken."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def snapshot_checkpoint(
    directory: Path,
    states: States,
    *,
    model_path: Path,
    step: int,
    ranks: Ranks,
) -> Callable[[], None]:
    """Copy all that a checkpoint holds. Rank 0 copies one full tensor after the other; the others do nothing more.

    Args:
        directory: Where the checkpoint is to be.
        states: The policies.
        model_path: The model that training started from: what lies beside its weights is copied too.
        step: The policies' step.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        What writes the checkpoint, for another thread, while training goes on. On ranks other than 0 it does nothing.
    """

    def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return gather_full_tensors(tensors.items(), ranks, lambda tensor: tensor.to("cpu", copy=True).contiguous())

    files = [f for f in model_path.iterdir() if f.is_file() and f.suffix not in (".safetensors", ".bin", ".pt")]
    manifest = Manifest(
        step=step,
        optimizer_steps=sum(optimizer_steps(state.optimizer) for state in states.values()),
    )
    weights: dict[str, dict[str, Tensor]] = {}
    beside: dict[str, dict[str, dict[str, Tensor]]] = {}
    for role, state in states.items():
        # The base is the same of all roles: one copy of it is enough.
        whole = not role or not weights
        weights[role] = copied(dict(state.model.named_parameters()) if whole else trained_parameters(state.model))
        beside[role] = {"optimizer/state.safetensors": copied(optimizer_state(state.model, state.optimizer))}
        if state.critic is not None:
            beside[role]["critic/model.safetensors"] = copied(dict(state.critic.named_parameters()))
            beside[role]["critic/optimizer.safetensors"] = copied(optimizer_state(state.critic, state.critic.optimizer))

    def write() -> None:
        if ranks.rank:
            return
        with atomic_dir(directory) as partial:
            for role, tensors_by_file in beside.items():
                for name, tensors in tensors_by_file.items():
                    _made((_folder(partial, role) / name).parent)
                    save_file(tensors, _folder(partial, role) / name)
            first, state = next(iter(states.items()))
            merge = merged_weights if not first else base_weights
            _write_model(state.model, merge(state.model, weights[first]), partial)
            for role, state in states.items():
                if is_adapted(state.model):
                    write_adapter(state.model, weights[role], _made(_adapter_folder(partial, role)))
            for file in files:
                if not (partial / file.name).exists():
                    shutil.copyfile(file, partial / file.name)  # its content, and not who may read the original
            write_manifest(partial, manifest)
            sync_tree(partial)  # before anything says that it is there
        sync(directory.parent)

    return write


def _adapter_folder(directory: Path, role: str) -> Path:
    return _folder(directory, role) if role else directory / "adapter"


def _write_model(model: Any, weights: dict[str, Tensor], directory: Path) -> None:
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)


def read_checkpoint(directory: Path, states: States, ranks: Ranks) -> Manifest:
    """Load a checkpoint, made by any number of ranks. Nothing is loaded unless every file is what was written.

    Args:
        directory: The checkpoint, on rank 0's machine.
        states: The policies that it goes into.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        The manifest.

    Raises:
        CheckpointError: It is damaged, and this is rank 0.
        ConfigError: It does not fit the models and the configuration, and this is rank 0.
        RankZeroError: One of these, and this is another rank.
    """
    manifest = ranks.from_rank_zero(partial(check_files, directory))
    ranks.from_rank_zero(partial(_check_kind, directory, states))
    for role, state in states.items():
        folder = _folder(directory, role)
        adapter = directory / "adapter" if is_adapted(state.model) and not role else folder
        read_published(state.model, adapter, ranks)
        _read_optimizer_state(state.model, state.optimizer, folder / "optimizer" / "state.safetensors", ranks)
        if (critic := state.critic) is not None:
            file = folder / "critic" / "model.safetensors"
            _read_all(dict(critic.named_parameters()), partial(load_file, file), file.parent, ranks)
            _read_optimizer_state(critic, critic.optimizer, folder / "critic" / "optimizer.safetensors", ranks)
    return manifest


def _check_kind(directory: Path, states: States) -> None:
    """Check that a checkpoint is of the same roles, if of any, of an adapter, if one is trained, and of a critic, if there is one.

    Raises:
        ConfigError: It is not.
    """
    held, roles = list(role_folders(directory)), [role for role in states if role]
    if sorted(held) != sorted(roles):
        has = f"the roles {', '.join(held)}" if held else "no roles"
        raise ConfigError(
            f"{directory} has adapters of {has}, and `trainer.lora.roles` = "
            f"{list(roles)}; go on with the roles that the run began with, or begin a new one"
        )
    for role, state in states.items():
        has_adapter, adapted = (directory / "adapter").is_dir(), is_adapted(state.model)
        if not role and has_adapter != adapted:
            raise ConfigError(
                f"{directory} was trained {'with' if has_adapter else 'without'} an adapter, and `trainer.lora` asks for "
                f"{'one' if adapted else 'none'}; go on as the run began, or begin a new one with `model.path` = {directory}"
            )
        if state.critic is not None and not (_folder(directory, role) / "critic").is_dir():
            raise ConfigError(f'{directory} was trained without a critic, and `trainer.advantage.kind` = "gae" has one')


def read_published(model: nn.Module, directory: Path, ranks: Ranks) -> None:
    """Load what `write_weights` wrote.

    Args:
        model: What the weights go into. All ranks must call it together.
        directory: Where they are, on rank 0's machine.
        ranks: The trainer's ranks.

    Raises:
        ConfigError: They are an adapter of another rank, another α or other layers, or do not fit the model, and this is rank 0.
        RankZeroError: The same, and this is another.
    """
    adapted, parameters = is_adapted(model), trained_parameters(model)

    def read() -> Mapping[str, Tensor]:
        weights = read_adapter(directory) if adapted else load_file(directory / "model.safetensors")
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        if adapted and shapes != {name: tensor.shape for name, tensor in weights.items()}:
            raise ConfigError(f"{directory / ADAPTER_WEIGHTS} is of another `trainer.lora.rank`")
        if adapted:
            check_alpha(model, directory)
        return weights

    _read_all(parameters, read, directory, ranks)


def _read_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path, ranks: Ranks) -> None:
    """Load what an optimizer remembered. How it goes on is as it was made: rates and decay come from the configuration."""
    optimizer.state.clear()
    tensors = ranks.on_rank_zero(partial(load_file, file))
    parameters = trained_parameters(model)
    keys = ranks.from_rank_zero(
        lambda: {name: [k for k in OPTIMIZER_STATE if f"{name}.{k}" in tensors] for name in parameters}
    )
    steps = ranks.from_rank_zero(
        lambda: {name: tensors[f"{name}.step"].clone() for name in parameters if f"{name}.step" in tensors}
    )
    for name, parameter in parameters.items():
        for key in keys[name]:
            optimizer.state[parameter][key] = torch.zeros_like(parameter)
            ranks.copy_from_rank_zero(optimizer.state[parameter][key], tensors.get(f"{name}.{key}"))
        if name in steps:  # a number, which stays on the CPU
            optimizer.state[parameter]["step"] = steps[name]


def _read_all(
    parameters: Mapping[str, nn.Parameter], read: Callable[[], Mapping[str, Tensor]], directory: Path, ranks: Ranks
) -> None:
    """Fill parameters with the tensors of their names, which rank 0 reads. `directory`: what messages call them."""

    def fitting() -> Mapping[str, Tensor]:
        tensors = read()
        for name, parameter in parameters.items():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise ConfigError(f"{directory} does not fit the model: {name} is not in it, or of another shape")
        return tensors

    tensors = ranks.on_rank_zero(fitting)
    for name, parameter in parameters.items():
        ranks.copy_from_rank_zero(parameter, tensors.get(name))
