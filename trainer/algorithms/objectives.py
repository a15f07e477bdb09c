"""Policy objectives: what is maximised for each token. Pure functions of packed 1-D tensors, every one of shape [T].

Symbols: θ the policy being optimised, p the proximal policy (the trainer's weights at the start of the step), b the
behaviour policy (recorded by the engine), A advantage, r = θ/p, w = p/b. What lies outside the loss mask is 0 in
`log_ratio` and `log_weight`. docs/objectives.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.config.trainer import (
    ConstantLength,
    LengthMean,
    MaskedImportance,
    NoImportance,
    TruncatedImportance,
)
from agentrl.trainer.packing import SequenceMap

LOG_RATIO_BOUND = 20.0
"""Bound of |log of a ratio| before it is exponentiated, as in verl: e^20 is far outside every clip, and still a finite number whose
products are finite."""
SAPO_TAU_POSITIVE, SAPO_TAU_NEGATIVE = 1.0, 1.05
"""τ of "sapo" where A > 0, and where it is not: those of the paper."""
M2PO_THRESHOLD = 0.04
"""τ of "m2po", that of the paper: the bound of the mean of (log θ/b)²."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return exp(x) with x held to ±LOG_RATIO_BOUND; beyond the bound it is constant, so its gradient is 0.

    Args:
        log_ratio: [T] x.

    Returns:
        [T].
    """
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


@dataclass(frozen=True)
class Surrogate:
    """An objective, and where its clip is active, so that the token has no gradient (or a bounded one)."""

    value: Tensor
    """[T]; carries the gradient."""
    clipped: Tensor
    """[T] bool."""


def ppo(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Surrogate:
    """Return PPO's objective, min(r·A, clip(r, 1−ε, 1+ε')·A) (Schulman et al. 2017, arXiv 1707.06347; ε' > ε: DAPO, arXiv 2503.14476).

    With a dual clip c > 1, where A < 0 it is never below c·A, so that a ratio that has run away cannot dominate (Ye
    et al. 2020, arXiv 1912.09729).

    Args:
        log_ratio: [T] log r.
        advantages: [T] A.
        clip_low: ε.
        clip_high: ε'.
        dual_clip: c; None for none.

    Returns:
        The objective of every token.
    """
    ratio = bounded_exp(log_ratio)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    value = torch.minimum(plain, clipped)
    is_clipped = clipped < plain
    if dual_clip is not None:
        floor = dual_clip * advantages
        low = (advantages < 0) & (value < floor)
        value, is_clipped = torch.where(low, floor, value), is_clipped | low
    return Surrogate(value, is_clipped)


def gspo(
    log_ratio: Tensor, advantages: Tensor, sequences: SequenceMap, *, clip_low: float, clip_high: float
) -> Surrogate:
    """Return PPO's clip on the sequence's ratio s = exp(mean of log r over its tokens) (GSPO, arXiv 2507.18071, eq. 7).

    In the form with a ratio for every token (eq. 11), s·r/sg(r) with sg: no gradient, so that turns may differ in A:
    with one A it has the value and the gradient of the sequence's form.

    Args:
        log_ratio: [T] log r.
        advantages: [T] A.
        sequences: Which sequence each token is of.
        clip_low: ε.
        clip_high: ε'.

    Returns:
        The objective of every token.
    """
    mean = sequences.mean(log_ratio).detach()
    return ppo(mean + log_ratio - log_ratio.detach(), advantages, clip_low=clip_low, clip_high=clip_high)


def cispo(log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Surrogate:
    """Return sg(clip(r, 1−ε, 1+ε'))·A·log θ: the weight is clipped, and no token loses its gradient (MiniMax-M1, arXiv 2506.13585, eq. 4).

    log r has the gradient of log θ, and stands in for it: the value differs by what has no gradient.

    Args:
        log_ratio: [T] log r.
        advantages: [T] A.
        clip_low: ε.
        clip_high: ε'.

    Returns:
        The objective of every token.
    """
    ratio = bounded_exp(log_ratio.detach())
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return Surrogate(clipped * advantages * log_ratio, clipped != ratio)


def sapo(log_ratio: Tensor, advantages: Tensor) -> Surrogate:
    """Return (4/τ)·σ(τ·(r − 1))·A, with τ by the sign of A: a soft gate in place of the clip (SAPO, arXiv 2511.20347).

    Args:
        log_ratio: [T] log r.
        advantages: [T] A.

    Returns:
        The objective of every token.
    """
    tau = torch.where(advantages > 0, SAPO_TAU_POSITIVE, SAPO_TAU_NEGATIVE)
    return Surrogate(
        4 / tau * torch.sigmoid(tau * (bounded_exp(log_ratio) - 1)) * advantages, torch.zeros_like(log_ratio).bool()
    )


def reinforce(log_ratio: Tensor, advantages: Tensor) -> Surrogate:
    """Return r·A, without any bound: importance-weighted REINFORCE (Williams 1992).

    Args:
        log_ratio: [T] log r.
        advantages: [T] A.

    Returns:
        The objective of every token.
    """
    return Surrogate(bounded_exp(log_ratio) * advantages, torch.zeros_like(log_ratio).bool())


def likelihood(logprobs: Tensor, advantages: Tensor) -> Surrogate:
    """Return A·log θ, without a ratio: with A = 1 the log-likelihood, for supervised learning (`agentrl sft`).

    Args:
        logprobs: [T] log θ.
        advantages: [T] A.

    Returns:
        The objective of every token.
    """
    return Surrogate(logprobs * advantages, torch.zeros_like(logprobs).bool())


def m2po(log_ratio: Tensor, advantages: Tensor, m2_mask: Tensor) -> Surrogate:
    """Return r·A over the tokens that `m2_cutoff` leaves (M2PO, arXiv 2510.01161, in AReaL's form; docs/objectives.md).

    Args:
        log_ratio: [T] log r, which is log θ/b here: the behaviour policy stands for the proximal one.
        advantages: [T] A.
        m2_mask: [T] bool, the tokens that are left.

    Returns:
        The objective of every token.
    """
    return Surrogate(torch.where(m2_mask, bounded_exp(log_ratio) * advantages, 0.0), ~m2_mask)


def m2_cutoff(log_ratios: Tensor, threshold: float) -> float:
    """Return c, so that the mean of the (log r)² that are at most c is at most τ, and no larger c has that; −1 where none does.

    Args:
        log_ratios: [T] log θ/b of all tokens of a minibatch.
        threshold: τ.

    Returns:
        c.
    """
    moments = log_ratios.square().sort().values
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1, device=moments.device)
    last = moments.diff(append=moments.new_full((1,), torch.inf)) > 0  # equal ones stay or go together
    fitting = moments[(means <= threshold) & last]
    return float(fitting[-1]) if len(fitting) else -1.0


def importance_weights(
    log_weight: Tensor, sequences: SequenceMap, how: TruncatedImportance | MaskedImportance | NoImportance
) -> tuple[Tensor, Tensor]:
    """Return the weight of every token for who sampled it. No gradient goes through it.

    With w = p/b, the bounds l and u, and n tokens in the sequence:

        none            1
        truncate        min(w, u)                       (truncated importance sampling; IMPALA, arXiv 1802.01561)
        mask            w if l ≤ w ≤ u, else 0          (IcePop, arXiv 2510.18855)
        sequence_mask   W = Πw over the sequence if l ≤ W ≤ u, else 0
        geometric_mask  w if l ≤ (Πw)^(1/n) ≤ u, else 0

    The last two are the masked importance sampling of Liu, Li et al. 2025 ("When speed kills stability").

    Args:
        log_weight: [T] log w.
        sequences: Which sequence each token is of.
        how: One of the kinds above, with l (0 by default) and u.

    Returns:
        ([T] weights, [T] bool: trained tokens whose weight was out of bounds).
    """
    log_weight = log_weight.detach()
    weight = bounded_exp(log_weight)
    if how.kind == "none":
        return torch.ones_like(weight), torch.zeros_like(sequences.loss_mask)
    if how.kind == "truncate":
        return weight.clamp(max=how.max), sequences.loss_mask & (weight > how.max)
    if how.kind == "sequence_mask":
        weight = compared = bounded_exp(sequences.sum(log_weight))
    elif how.kind == "geometric_mask":
        compared = bounded_exp(sequences.mean(log_weight))
    else:
        compared = weight
    outside = (compared < how.min) | (compared > how.max)
    return weight.masked_fill(outside, 0.0), sequences.loss_mask & outside


def aggregation_weights(
    sequences: SequenceMap, *, how: LengthMean | ConstantLength, token_count: int, sequence_count: int
) -> Tensor:
    """Return what each token counts in the loss of its minibatch.

        token      1/N of all N tokens                  (DAPO, arXiv 2503.14476)
        sequence   1/(S·n) with n tokens in its sequence, S sequences   (GRPO, arXiv 2402.03300)
        constant   1/(S·L) with a fixed length L, so that long replies weigh no less a token   (Dr. GRPO, arXiv 2503.20783)

    Args:
        sequences: Which sequence each token of the pack is of.
        how: One of the kinds above, with L.
        token_count: N, of the minibatch.
        sequence_count: S, of the minibatch.

    Returns:
        [T]; 0 outside the mask.
    """
    mask = sequences.loss_mask.float()
    if how.kind == "token":
        return mask / max(1, token_count)
    if how.kind == "sequence":
        return mask / (max(1, sequence_count) * sequences.lengths(mask).clamp(min=1))
    return mask / (max(1, sequence_count) * how.length)
