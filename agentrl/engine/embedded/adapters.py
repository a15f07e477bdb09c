"""LoRA adapters on one model, side by side: each forward pass is computed with one of them, or with none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agentrl.engine.adapter import ADAPTER, check_fit, read_adapter, read_adapter_config


class LoadedAdapters:
    """The adapters that are loaded, and which of them is in use."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._in_model: dict[str, str] = {}
        """Name → its name in the model, which takes no dots. Those that were unloaded stay."""
        self._active: str | None = None
        self.names: list[str] = []
        """Those that are loaded."""

    def was_loaded(self, name: str) -> bool:
        """Return whether an adapter is loaded, or was."""
        return name in self._in_model

    def load(self, name: str, directory: Path) -> None:
        """Put an adapter on the model.

        Raises:
            ValueError: It is loaded already, is no LoRA adapter, or does not fit the model. Nothing has changed then.
            OSError: There is none.
        """
        if name in self.names:
            raise ValueError(f"LoRA with name {name} already exists.")
        config, tensors = read_adapter_config(directory), read_adapter(directory)
        own = f"adapter{len(self._in_model)}"
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
        self._in_model[name] = own
        self.names.append(name)

    def unload(self, name: str) -> None:
        """Take an adapter off the model.

        Raises:
            ValueError: It is not loaded.
        """
        if name not in self.names:
            raise ValueError(f"LoRA with name {name} does not exist. Loaded LoRAs: {self.names}")
        self.names.remove(name)
        self._model.delete_adapter(self._in_model[name])

    def activate(self, name: str | None) -> None:
        """Compute with an adapter from now on, or with the model alone.

        Raises:
            ValueError: It is not loaded.
        """
        if name is not None and name not in self.names:
            raise ValueError(f"LoRA with name {name} is not loaded any more.")
        own = None if name is None else self._in_model[name]
        if own == self._active:
            return
        if own is not None:
            self._model.enable_adapters()
            self._model.set_adapter(own)
        elif self.names:
            self._model.disable_adapters()
        self._active = own
