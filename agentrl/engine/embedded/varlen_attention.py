"""Attention over packed sequences on any device: each sequence attends to itself alone, with no mask over the pack.

transformers' own CPU path builds one dense mask over all sequences of a batch, which costs the square of the batch. This
computes the diagonal blocks only, for the embedded engine: queries against a paged KV cache. The trainer's packs have attention of
their own (`agentrl.trainer.model.tree_attention`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

VARLEN = "agentrl_varlen_flash"
"""The attention implementation's name. transformers reads "flash" in it as: takes `cu_seq_lens`, needs no mask."""


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of packed sequences, right-aligned where a sequence has more keys than queries.

    `query`: [1, heads, Tq, D]; `key`, `value`: [1, kv_heads, Tk, D]; `cu_seq_lens_q`, `cu_seq_lens_k`: [sequences + 1]
    boundaries. Without boundaries every batch row is one sequence. AdvantagesAndReturns [batch, Tq, heads, D].
    """
    if cache is not None:
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    bounds_q, bounds_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if bounds_q is None or bounds_k is None:
        return _causal(query, key, value, scaling).transpose(1, 2), None
    starts_q, starts_k = bounds_q.tolist(), bounds_k.tolist()
    blocks = [
        _causal(query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1], scaling)
        for q0, q1, k0, k1 in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False)
        if q1 > q0
    ]
    return torch.cat(blocks, dim=2).transpose(1, 2), None


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    queries, keys = query.shape[2], key.shape[2]
    mask = None
    if 1 < queries < keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=queries == keys and queries > 1, scale=scaling, enable_gqa=True
    )


def use_varlen_attention(model: Any) -> None:
    """Make `model` (a transformers causal LM) attend through `varlen_attention`."""
    AttentionInterface.register(VARLEN, varlen_attention)
    AttentionMaskInterface.register(VARLEN, lambda *args, **kwargs: None)
    # set_attn_implementation would look for a flash-attention kernel behind the name.
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = VARLEN
