"""Policy losses: pure functions of packed 1-D tensors, every one of shape [T].

Symbols: b behaviour policy (recorded by the engine), p proximal policy (the trainer's weights at the start of the step),
θ the policy being optimised, A advantage, m loss mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossStats:
    """Sums over the masked tokens, to be divided by `tokens`."""

    tokens: float
    clipped: float
    """Tokens at which the clip is active."""
    capped: float
    """Tokens whose weight p/b exceeded the bound."""
    weight: float
    """Sum of the weights p/b, after the bound."""
    kl: float
    """Sum of k3 = e^d − 1 − d with d = log θ − log p, an estimate of KL(p‖θ) (Schulman 2020)."""


def decoupled_ppo_loss(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    weight_cap: float,
    weight_mode: Literal["truncate", "mask"],
) -> tuple[Tensor, LossStats]:
    """Decoupled PPO, summed over tokens: −Σ m · w · min(r·A, clip(r, 1−ε, 1+ε')·A).

    r = θ/p is clipped around the proximal policy; w = p/b corrects for who sampled the token and carries no gradient
    (Hilton et al. 2021, arXiv 2110.00641; AReaL, arXiv 2505.24298, eq. 5). Where w exceeds `weight_cap` = c it becomes c
    ("truncate", as in IMPALA, arXiv 1802.01561) or 0 ("mask"). With p = b it is PPO (Schulman et al. 2017,
    arXiv 1707.06347); ε' > ε is the asymmetric clip of DAPO (arXiv 2503.14476).

    Args:
        logprobs: [T] log θ, the only input that carries a gradient.
        proximal_logprobs: [T] log p.
        behaviour_logprobs: [T] log b.
        advantages: [T].
        loss_mask: [T] bool; what is False counts nowhere.

    Returns:
        The loss, a scalar sum over tokens, and its statistics.
    """
    mask = loss_mask.to(logprobs.dtype)
    # A position outside the mask may hold anything, infinities included; 0 · inf would be NaN.
    log_ratio = torch.where(loss_mask, logprobs - proximal_logprobs.detach(), 0.0)
    log_weight = torch.where(loss_mask, proximal_logprobs - behaviour_logprobs, 0.0).detach()
    ratio = log_ratio.exp()
    weight = log_weight.exp()
    capped = weight > weight_cap
    weight = weight.clamp(max=weight_cap) if weight_mode == "truncate" else weight.masked_fill(capped, 0.0)

    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -(mask * weight * torch.minimum(unclipped, clipped)).sum()
    with torch.no_grad():
        stats = LossStats(
            tokens=float(mask.sum()),
            clipped=float((mask * (clipped < unclipped)).sum()),
            capped=float((mask * capped).sum()),
            weight=float((mask * weight).sum()),
            kl=float((mask * (ratio - 1 - log_ratio)).sum()),
        )
    return loss, stats


def token_logprobs(logits: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
    """log softmax(logits / temperature) at `targets`. logits: [T, V]; targets, temperature: [T]. Returns [T] float32."""
    scaled = logits.float() / temperature.unsqueeze(-1)
    return scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, dim=-1)


@dataclass(frozen=True)
class Mismatch:
    """How far the engine's logprobs are from the trainer's, for the same tokens under the same weights."""

    tokens: int
    mean_abs: float
    """Mean |Δlogprob|."""
    max_abs: float
    k3: float
    """Mean of e^d − 1 − d with d = trainer − engine: an estimate of KL(engine‖trainer)."""


def mismatch(engine_logprobs: Tensor, trainer_logprobs: Tensor) -> Mismatch | None:
    """Compare two scorings of the same tokens, both [T]; None for no tokens."""
    if engine_logprobs.numel() == 0:
        return None
    difference = (trainer_logprobs - engine_logprobs).double()
    absolute = difference.abs()
    k3 = difference.exp() - 1 - difference
    return Mismatch(difference.numel(), float(absolute.mean()), float(absolute.max()), float(k3.mean()))
