"""Training a LoRA adapter in place of the model's own weights, with peft. What is published then is the adapter alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agentrl.config.trainer import LoraConfig
from agentrl.engine.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentrl.engine.model_adapters import is_adapter_parameter, name_in_base, name_in_file
from agentrl.errors import ConfigError


def add_adapter(model: Any, config: LoraConfig) -> None:
    """Put an adapter that changes nothing yet on a model; from now on only the adapter has gradients.

    Args:
        model: A transformers causal LM.
        config: Rank, α and layers.

    Raises:
        ConfigError: The layers cannot be adapted.
    """
    from peft import LoraConfig

    with torch.random.fork_rng():
        torch.manual_seed(0)  # A is random, and the same for every rank and for a trainer that is started again
        model.add_adapter(LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules="all-linear"))


def is_adapted(model: nn.Module) -> bool:
    """Return whether the model has an adapter, which is then all of it that is trained."""
    return any(is_adapter_parameter(name) for name, _ in model.named_parameters())


def check_alpha(model: Any, directory: Path) -> None:
    """Check that what an adapter adds counts as much in a model as in the one that it was trained in: α/r times.

    Args:
        model: The adapted model.
        directory: Where the adapter was written.

    Raises:
        ConfigError: It was trained with another α.
    """
    alpha, trained = model.peft_config["default"].lora_alpha, json.loads((directory / ADAPTER_CONFIG).read_bytes())
    if trained["lora_alpha"] != alpha:
        raise ConfigError(
            f"{directory} was trained with `trainer.lora.alpha` = {trained['lora_alpha']:g}, and it is {alpha:g}, under which the same "
            "weights are another policy; go on with the value that the run began with, or begin a new one"
        )


@contextmanager
def adapter_off(model: Any) -> Iterator[None]:
    """Take the adapter out of effect, for the length of the context.

    Args:
        model: The model.

    Yields:
        Nothing.
    """
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def merged_weights(model: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model without an adapter that does what the adapted one does.

    Args:
        model: The adapted model.
        parameters: Its parameters, full.

    Returns:
        Weights by their names in the model without an adapter.
    """
    weights = {}
    for name, tensor in parameters.items():
        if is_adapter_parameter(name):
            continue
        path, _, kind = name.partition(".base_layer.")
        if kind == "weight":
            layer = model.get_submodule(path)
            low, high = (parameters[f"{path}.lora_{side}.default.weight"] for side in "AB")
            change = layer.scaling["default"] * (high @ low)
            tensor = tensor + (change.T if layer.fan_in_fan_out else change)
        weights[name_in_base(name)] = tensor
    return weights


def base_weights(model: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model as they are under its adapter, by their names in the model without one."""
    return {name_in_base(name): tensor for name, tensor in parameters.items() if not is_adapter_parameter(name)}


def write_adapter(model: Any, parameters: Mapping[str, Tensor], directory: Path) -> None:
    """Write the adapter as peft does, and as it and SGLang read it.

    Args:
        model: The adapted model.
        parameters: Its parameters, full.
        directory: Where it goes.
    """
    tensors = {name_in_file(n): tensor.contiguous() for n, tensor in parameters.items() if is_adapter_parameter(n)}
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(directory)
