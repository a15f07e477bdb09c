"""Attention over packs of prefix trees: each token attends to its ancestors and itself, with no mask over the whole pack.

On a CPU the pack is cut into segments without a branch, and each attends to its ancestors' keys and its own: the blocks of
the mask that hold anything, computed with torch's fused attention. On a GPU, FlexAttention skips the empty blocks itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from agentrl.trainer.packing import Pack

TREE = "agentrl_tree_flash"
"""The attention implementation's name. transformers reads "flash" in it as: makes no mask over the batch."""


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree: Pack | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in a pack. `query`: [1, heads, N, D]; `key`, `value`: [1, kv_heads, N, D]. Returns [1, N, heads, D].

    Without `tree` the whole batch row is one sequence.
    """
    size = query.shape[2]
    if tree is None:
        return _attend(query, key, value, scaling, sliding_window, softcap).transpose(1, 2), None
    if query.device.type == "cuda" and sliding_window is None and softcap is None:
        out = _flex_attention()(query, key, value, block_mask=tree.block_mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2), None
    blocks = []
    for segment in tree.segments:
        ranges = (*segment.ancestors, (segment.start, segment.end))
        own, above = segment.end - segment.start, sum(end - start for start, end in segment.ancestors)
        # The causal kernel skips what it need not compute, and a mask does not: below this, to ask again is cheaper.
        asked = ranges if above < own else ranges[-1:]
        block = _attend(
            _joined(query, asked), _joined(key, ranges), _joined(value, ranges), scaling, sliding_window, softcap
        )
        blocks.append(block[:, :, -own:])
    assert tree.segments[-1].end == size
    return torch.cat(blocks, dim=2).transpose(1, 2), None


def use_tree_attention(model: Any) -> None:
    """Make `model` (a transformers causal LM) attend through `tree_attention`."""
    AttentionInterface.register(TREE, tree_attention)
    AttentionMaskInterface.register(TREE, lambda *args, **kwargs: None)
    # set_attn_implementation would look for a flash-attention kernel behind the name.
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = TREE


def _joined(states: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    if len(ranges) == 1:
        return states[:, :, ranges[0][0] : ranges[0][1]]
    return torch.cat([states[:, :, start:end] for start, end in ranges], dim=2)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention of the last of `key`'s positions."""
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
