"""A LoRA adapter (Hu et al. 2021, arXiv 2106.09685) as files, in peft's form, and in a transformers model.

A directory holds `adapter_model.safetensors` and `adapter_config.json`. In a model, every matrix W that it adapts becomes
W + (α/r)·B·A, and only A [r, in] and B [out, r] are the adapter's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agentrl.engine.protocol import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from peft import LoraConfig

_PREFIX = "base_model.model."
"""peft names what it saves after a wrapper that it puts around a model; transformers' own adapters have none."""
ADAPTER = ".default."
"""The name of the one adapter of a model, in the names of its parameters."""


def is_adapter_parameter(name: str) -> bool:
    """Return whether a parameter of a model that has an adapter belongs to that."""
    return ".lora_" in name


def name_in_base(name: str) -> str:
    """Return the name that a parameter of an adapted model has in the model without an adapter."""
    return name.replace(".base_layer.", ".")


def name_in_file(name: str) -> str:
    """Return the name under which an adapter's parameter is saved."""
    return _PREFIX + name.replace(ADAPTER, ".")


def read_adapter(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of an adapter by the names of the adapted model's parameters.

    Raises:
        ValueError: The file is damaged.
        OSError: There is none.
    """
    saved = read_tensors(directory / ADAPTER_WEIGHTS)
    return {name_in_model(name): tensor for name, tensor in saved.items()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors in a file.

    Raises:
        ValueError: The file is damaged.
        OSError: There is none.
    """
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def name_in_model(name: str) -> str:
    """Return the name in the adapted model of a parameter that is saved under `name`."""
    before, kind, after = name.removeprefix(_PREFIX).rpartition(".weight")
    return f"{before}{ADAPTER}weight{after}" if kind else name


def read_adapter_config(directory: Path) -> LoraConfig:
    """Return what kind of adapter a directory holds.

    Raises:
        ValueError: It is no LoRA adapter.
        OSError: There is none.
    """
    from peft import LoraConfig, PeftConfig

    if not (directory / ADAPTER_CONFIG).is_file():
        raise OSError(f"{directory} holds no {ADAPTER_CONFIG}")
    try:
        config = PeftConfig.from_pretrained(str(directory))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / ADAPTER_CONFIG} says nothing of an adapter: {error!r}") from error
    if not isinstance(config, LoraConfig):
        raise ValueError(f"{directory} holds an adapter of kind {config.peft_type}, not LORA")
    return config


def check_fit(parameters: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Check that there is a tensor for every parameter, of its shape.

    Args:
        parameters: Of a model, by name.
        tensors: Of the same names.
        where: The directory that they were read from.

    Raises:
        ValueError: There is not.
    """
    missing = sorted(parameters.keys() - tensors.keys())
    wrong = sorted(n for n in parameters.keys() & tensors.keys() if parameters[n].shape != tensors[n].shape)
    if missing or wrong:
        raise ValueError(f"{where} does not fit the model: missing {missing[:3]}, wrong shape {wrong[:3]}")


def sharing_weights(model: Any, count: int) -> list[Any]:
    """Return a model and `count` − 1 copies of it that have its very weights: only what is put on one of them is its own."""
    copies = []
    for _ in range(count - 1):
        kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        copies.append(copy.deepcopy(model, kept))
    return [model, *copies]
