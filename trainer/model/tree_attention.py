"""Attention over packs of prefix trees: each token attends to its ancestors and itself, with no mask over the whole pack.

On a CPU the pack is cut into segments without a branch, and each attends to its ancestors' keys and its own: the blocks of
the mask that hold anything, computed with torch's fused attention. On a GPU, FlexAttention skips the empty blocks itself.

transformers computes a layer's mask through a registered function, and gives what that returns to the attention as
`attention_mask`. Here it is nothing, for all ancestors, or a `Window`, for the last of them; so a window is honoured for every kind
of model, whether its layers name it to their attention or not. A mask of any other kind is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from agentrl.errors import ConfigError
from agentrl.trainer.packing import Pack

TREE = "agentrl_tree_flash"
"""The attention implementation's name. transformers reads "flash" in it as: makes no mask over the batch."""
_HARMLESS = frozenset({"dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "sliding_window"})
"""Arguments that change nothing here. A window counts where it is in the mask, as in transformers' eager attention. What is not among
them may ask for another attention than softmax(q·k), such as sinks, biases, or a choice of keys."""


@dataclass(frozen=True)
class Window:
    """A sliding window, in the place of a mask."""

    size: int
    """Tokens that a token attends to, itself included."""


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Window | None,
    scaling: float | None = None,
    tree: Pack | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention in a pack, [1, N, heads, D].

    Args:
        module: The attention layer.
        query: [1, heads, N, D].
        key: [1, kv_heads, N, D].
        value: [1, kv_heads, N, D].
        attention_mask: What `tree_mask` returned for the layer.
        scaling: What q·k is multiplied by; 1/√D by default.
        tree: The pack. A model that does not pass it on to every layer is refused.
        softcap: c, where logits z become c·tanh(z/c).
        **kwargs: What else transformers passes; only what changes nothing is accepted.

    Returns:
        ([1, N, heads, D], None): the output, and no attention weights.

    Raises:
        ConfigError: The layer passes no tree, or a mask of its own, or an argument that is not known.
    """
    size = query.shape[2]
    if tree is None:
        raise ConfigError(
            "its layers do not pass on what they are called with, here the prefix tree, to their attention"
        )
    if attention_mask is not None and not isinstance(attention_mask, Window):
        raise ConfigError("its layers mask attention in a way of their own")
    if unknown := sorted(name for name in kwargs.keys() - _HARMLESS if kwargs[name] is not None):
        raise ConfigError(f"its attention has {', '.join(unknown)}, which is not supported")
    window = attention_mask.size if attention_mask is not None else None
    if query.device.type == "cuda" and window is None and softcap is None:
        out = _flex_attention()(query, key, value, block_mask=tree.block_mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    blocks = []
    for segment in tree.segments:
        ranges = (*segment.ancestors, (segment.start, segment.end))
        own, above = segment.end - segment.start, sum(end - start for start, end in segment.ancestors)
        # The causal kernel skips what it need not compute, and a mask does not: below this, to ask again is cheaper.
        asked = ranges if above < own else ranges[-1:]
        block = _attend(_joined(query, asked), _joined(key, ranges), _joined(value, ranges), scaling, window, softcap)
        blocks.append(block[:, :, -own:])
    assert tree.segments[-1].end == size
    # Some models reshape it with view().
    return torch.cat(blocks, dim=2).transpose(1, 2).contiguous(), None


def tree_mask(*args: Any, local_size: int | None = None, use_vmap: bool = False, **kwargs: Any) -> Window | None:
    """Return what a layer's mask adds to the tree: nothing, or a window.

    Called by transformers as a mask function is.

    Args:
        *args: What a mask is made of elsewhere.
        local_size: The layer's window.
        use_vmap: Whether the model changes the mask by a function of its own.
        **kwargs: What a mask is made of elsewhere.

    Returns:
        The window; None for all ancestors.

    Raises:
        ConfigError: The model changes the mask.
    """
    if use_vmap:
        raise ConfigError("it changes the causal mask by a function of its own")
    return None if local_size is None else Window(local_size)


def use_tree_attention(model: Any) -> None:
    """Make `model` (a transformers causal LM) attend through `tree_attention`."""
    AttentionInterface.register(TREE, tree_attention)
    AttentionMaskInterface.register(TREE, tree_mask)
    _use_attention(model, TREE)


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Give a model the attention that transformers itself spells out, for the length of the context.

    Args:
        model: The model.

    Yields:
        Nothing.
    """
    _use_attention(model, "eager")
    try:
        yield
    finally:
        _use_attention(model, TREE)


def _use_attention(model: Any, implementation: str) -> None:
    # set_attn_implementation would look for a flash-attention kernel behind the name.
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = implementation


def _joined(states: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    if len(ranges) == 1:
        return states[:, :, ranges[0][0] : ranges[0][1]]
    return torch.cat([states[:, :, start:end] for start, end in ranges], dim=2)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Return causal attention of the last of `key`'s positions."""
    queries, keys = query.shape[2], key.shape[2]
    windowed = window is not None and keys > window
    mask = None
    if softcap is not None or windowed or 1 < queries < keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        if windowed:
            mask = mask.triu(keys - queries - window + 1)  # type: ignore[operator]
    if softcap is not None:
        groups = query.shape[1] // key.shape[1]
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scale
        scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, -torch.inf)  # type: ignore[operator]
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        return weights @ value.repeat_interleave(groups, 1)
    causal = mask is None and queries == keys and queries > 1
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=True
    )


@cache
def _flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
