"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685) in a transformers model: read from files in peft's form, and put beside each other.

Every matrix W that an adapter adapts becomes W + (α/r)·B·A, and only A [r, in] and B [out, r] are the adapter's. The files themselves
are `adapters.py`'s.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agentrl.engine.adapters import ADAPTER_WEIGHTS

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
        ValueError: It holds none, or one that is no LoRA adapter.
    """
    from peft import LoraConfig, PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(directory))
    except ValueError as error:
        raise ValueError(f"{directory} holds no adapter that can be read: {error}") from error
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
    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return [model, *(copy.deepcopy(model, dict(kept)) for _ in range(count - 1))]


class LoadedAdapters:
    """The adapters that are loaded into a model side by side: each forward pass is computed with one of them, or with none."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.in_model: dict[str | None, str] = {}
        """Name of a loaded one → its name in the model, which takes no dots and is never used again."""
        self._serials = itertools.count()
        self._active: str | None = None

    def load(self, name: str, directory: Path) -> None:
        """Put an adapter on the model.

        Raises:
            ValueError: It is loaded already, is no LoRA adapter, or does not fit the model. Nothing has changed then.
            OSError: There is none.
        """
        if name in self.in_model:
            raise ValueError(f"LoRA with name {name} already exists.")
        config, tensors = read_adapter_config(directory), read_adapter(directory)
        own = f"adapter{next(self._serials)}"
        self._model.add_adapter(config, own)
        self._active = ""  # it is in use in some layers, and in others what was before
        self._model.eval()
        found = {n.replace(f".{own}.", ADAPTER): p for n, p in self._model.named_parameters() if f".{own}." in n}
        try:
            check_fit(found, tensors, directory)
        except ValueError:
            self._model.delete_adapter(own)
            raise
        with torch.no_grad():
            for key, parameter in found.items():
                parameter.copy_(tensors[key])
        self.in_model[name] = own

    def unload(self, name: str) -> None:
        """Take an adapter off the model.

        Raises:
            ValueError: It is not loaded.
        """
        if name not in self.in_model:
            raise ValueError(f"LoRA with name {name} does not exist. Loaded LoRAs: {[*self.in_model]}")
        self._model.delete_adapter(self.in_model.pop(name))

    def activate(self, name: str | None) -> None:
        """Compute with an adapter that is loaded from now on, or with the model alone."""
        own = None if name is None else self.in_model[name]
        if own == self._active:
            return
        if own is not None:
            self._model.enable_adapters()
            self._model.set_adapter(own)
        elif self.in_model:
            self._model.disable_adapters()
        self._active = own
