"""Dropout and recomputed activations, each where it is asked for.

A policy and its critic are in evaluation mode: what they compute is one number, and no router adds noise. Dropout is switched on for the
gradient pass alone, which reaches to the end of the backward pass, where activations may be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from agentrl.errors import ConfigError


@contextmanager
def gradient_pass(model: nn.Module, *, dropout: bool, seed: tuple[int, ...]) -> Iterator[None]:
    """Put a model into the mode of a gradient pass, for the length of the context.

    Args:
        model: The model.
        dropout: Whether its dropout acts.
        seed: What is dropped follows from it: step, rank, pack. So a step that is taken again drops the same.

    Yields:
        Nothing.
    """
    if not dropout:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(hash(seed))
        model.train()
        try:
            yield
        finally:
            model.eval()


def recompute_activations(layers: Sequence[nn.Module]) -> None:
    """Make each layer keep its inputs alone for the backward pass, and compute the rest again there.

    It does not depend on the model being in training mode, as that of transformers does, nor on its kind.

    Args:
        layers: The decoder layers of a model.

    Raises:
        ConfigError: There are none, because those of the model are not known.
    """
    if not layers:
        raise ConfigError(
            "trainer.recompute_activations: the layers of this kind of model are not known; set it to false"
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
