"""LoRA adapters on one model, side by side: each forward pass is computed with one of them, or with none."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from agentrl.engine.adapter import ADAPTER, check_fit, read_adapter, read_adapter_config


class LoadedAdapters:
    """The adapters that are loaded, at most so many at once, and the one that is in use."""

    def __init__(self, model: Any, most: int) -> None:
        self._model = model
        self._most = most
        self._in_model: dict[str, str] = {}
        """Name → its name in the model, which takes no dots; that which was loaded longest ago first."""
        self._past: set[str] = set()
        self._numbers = itertools.count()
        self._active: str | None = None

    @property
    def names(self) -> list[str]:
        """Those that are loaded."""
        return list(self._in_model)

    def was_loaded(self, name: str) -> bool:
        """Return whether an adapter is loaded, or was."""
        return name in self._past

    def load(self, name: str, directory: Path) -> None:
        """Put an adapter on the model, and where there are too many then, put that away which was loaded longest ago.

        Raises:
            ValueError: It is loaded already, is no LoRA adapter, or does not fit the model. Nothing has changed then.
            OSError: There is none.
        """
        if name in self._in_model:
            raise ValueError(f"LoRA with name {name} already exists.")
        config, tensors = read_adapter_config(directory), read_adapter(directory)
        own = f"adapter{next(self._numbers)}"
        self._model.add_adapter(config, own)
        self._model.eval()
        self._active = own
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
        self._past.add(name)
        if len(self._in_model) > self._most:
            self.unload(next(iter(self._in_model)))

    def unload(self, name: str) -> None:
        """Take an adapter off the model.

        Raises:
            ValueError: It is not loaded.
        """
        if name not in self._in_model:
            raise ValueError(f"LoRA with name {name} does not exist. Loaded LoRAs: {self.names}")
        self._model.delete_adapter(self._in_model.pop(name))

    def activate(self, name: str | None) -> None:
        """Compute with an adapter from now on, or with the model alone."""
        own = None if name is None else self._in_model[name]
        if own == self._active:
            return
        if own is None:
            self._model.disable_adapters()
        else:
            self._model.enable_adapters()
            self._model.set_adapter(own)
        self._active = own
