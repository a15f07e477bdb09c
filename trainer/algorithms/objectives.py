"""Policy objectives: what is maximised for each token. Pure functions of packed 1-D tensors, every one of shape [T].

Symbols: θ the policy being optimised, p the proximal policy (the trainer's weights at the start of the step), b the
behaviour policy (recorded by the engine), A advantage, r = θ/p, w = p/b. What lies outside the loss mask is 0 in
`log_ratio` and `log_weight`. docs/objectives.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Bound of |log of a ratio| before it is exponentiated, as in verl: e^20 is far outside every clip, and still a finite number whose
products are finite."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(x) with x held to ±LOG_RATIO_BOUND; beyond the bound it is constant, so its gradient is 0."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


@dataclass(frozen=True)
class Sequences:
    """Which token belongs to which sequence of a pack, and which tokens count."""

    index: Tensor
    """[T] number of the token's sequence, from 0."""
    count: int
    mask: Tensor
    """[T] bool: the loss mask."""

    def sum(self, values: Tensor) -> Tensor:
        """[T] for every token the sum over the trained tokens of its sequence."""
        totals = values.new_zeros(self.count).index_add(0, self.index, values * self.mask)
        return totals[self.index]

    def mean(self, values: Tensor) -> Tensor:
        """[T] for every token the mean over the trained tokens of its sequence; 0 where there is none."""
        return self.sum(values) / self.lengths(values).clamp(min=1)

    def lengths(self, like: Tensor) -> Tensor:
        """[T] for every token the number of masked tokens of its sequence."""
        return self.sum(torch.ones_like(like))


@dataclass(frozen=True)
class Surrogate:
    """An objective, and where its bound is active, so that the token has no gradient (or a bounded one)."""

    value: Tensor
    """[T]; carries the gradient."""
    bounded: Tensor
    """[T] bool."""


def ppo(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Surrogate:
    """min(r·A, clip(r, 1−ε, 1+ε')·A) (Schulman et al. 2017, arXiv 1707.06347; ε' > ε: DAPO, arXiv 2503.14476).

    With `dual_clip` = c > 1, where A < 0 it is never below c·A, so that a ratio that has run away cannot dominate (Ye
    et al. 2020, arXiv 1912.09729).
    """
    ratio = bounded_exp(log_ratio)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    value = torch.minimum(plain, clipped)
    bounded = clipped < plain
    if dual_clip is not None:
        floor = dual_clip * advantages
        low = (advantages < 0) & (value < floor)
        value, bounded = torch.where(low, floor, value), bounded | low
    return Surrogate(value, bounded)


def gspo(
    log_ratio: Tensor, advantages: Tensor, sequences: Sequences, *, clip_low: float, clip_high: float
) -> Surrogate:
    """PPO's clip on the sequence's ratio s = exp(mean of log r over its tokens) (GSPO, arXiv 2507.18071, eq. 7).

    In the form with a ratio for every token (eq. 11), s·r/sg(r) with sg: no gradient, so that turns may differ in A:
    with one A it has the value and the gradient of the sequence's form.
    """
    mean = sequences.mean(log_ratio).detach()
    return ppo(mean + log_ratio - log_ratio.detach(), advantages, clip_low=clip_low, clip_high=clip_high)


def cispo(log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Surrogate:
    """sg(clip(r, 1−ε, 1+ε'))·A·log θ: the weight is clipped, and no token loses its gradient (MiniMax-M1, arXiv
    2506.13585, eq. 4).

    log r has the gradient of log θ, and stands in for it: the value differs by what has no gradient.
    """
    ratio = bounded_exp(log_ratio.detach())
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return Surrogate(clipped * advantages * log_ratio, clipped != ratio)


def sapo(log_ratio: Tensor, advantages: Tensor, *, tau_positive: float, tau_negative: float) -> Surrogate:
    """(4/τ)·σ(τ·(r − 1))·A, with τ by the sign of A: a soft gate in place of the clip (SAPO, arXiv 2511.20347)."""
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    return Surrogate(
        4 / tau * torch.sigmoid(tau * (bounded_exp(log_ratio) - 1)) * advantages, torch.zeros_like(log_ratio).bool()
    )


def reinforce(log_ratio: Tensor, advantages: Tensor) -> Surrogate:
    """r·A, without any bound: importance-weighted REINFORCE (Williams 1992)."""
    return Surrogate(bounded_exp(log_ratio) * advantages, torch.zeros_like(log_ratio).bool())


def likelihood(logprobs: Tensor, advantages: Tensor) -> Surrogate:
    """A·log θ, without a ratio: with A = 1 the log-likelihood, for supervised learning (`agentrl sft`)."""
    return Surrogate(logprobs * advantages, torch.zeros_like(logprobs).bool())


def m2po(log_ratio: Tensor, advantages: Tensor, kept: Tensor) -> Surrogate:
    """r·A over the tokens that `m2_cutoff` leaves (M2PO, arXiv 2510.01161, in AReaL's form; docs/objectives.md). r is θ/b: pass the logprobs of the behaviour policy
    for the proximal ones. `kept`: [T] bool."""
    return Surrogate(torch.where(kept, bounded_exp(log_ratio) * advantages, 0.0), ~kept)


def m2_cutoff(log_ratios: Tensor, threshold: float) -> float:
    """c, so that the mean of the (log r)² that are at most c is at most τ, and no larger c has that; −1 where none does.

    `log_ratios`: [T] log θ/b of all tokens of a minibatch.
    """
    moments = log_ratios.square().sort().values
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1, device=moments.device)
    last = moments.diff(append=moments.new_full((1,), torch.inf)) > 0  # equal ones stay or go together
    fitting = moments[(means <= threshold) & last]
    return float(fitting[-1]) if len(fitting) else -1.0


def correction(
    log_weight: Tensor, sequences: Sequences, *, mode: str, floor: float, cap: float
) -> tuple[Tensor, Tensor]:
    """The weight of every token for who sampled it, and where its bound was active. No gradient goes through it.

    none            1
    truncate        min(w, cap)                            (truncated importance sampling; IMPALA, arXiv 1802.01561)
    mask            w if floor ≤ w ≤ cap, else 0           (IcePop, arXiv 2510.18855)
    sequence_mask   W = Πw over the sequence if floor ≤ W ≤ cap, else 0
    geometric_mask  w if floor ≤ (Πw)^(1/n) ≤ cap, else 0

    The last two are the masked importance sampling of Liu, Li et al. 2025 ("When speed kills stability").
    """
    log_weight = log_weight.detach()
    weight = bounded_exp(log_weight)
    if mode == "none":
        return torch.ones_like(weight), torch.zeros_like(sequences.mask)
    if mode == "truncate":
        return weight.clamp(max=cap), sequences.mask & (weight > cap)
    if mode == "sequence_mask":
        weight = judged = bounded_exp(sequences.sum(log_weight))
    elif mode == "geometric_mask":
        judged = bounded_exp(sequences.mean(log_weight))
    else:
        judged = weight
    outside = (judged < floor) | (judged > cap)
    return weight.masked_fill(outside, 0.0), sequences.mask & outside


def token_shares(sequences: Sequences, *, mode: str, tokens: int, count: int, length: int | None) -> Tensor:
    """[T] what each token counts in the loss; 0 outside the mask.

    token      1/N of all N tokens of the minibatch (DAPO, arXiv 2503.14476)
    sequence   1/(S·n) with n tokens in its sequence, S sequences (GRPO, arXiv 2402.03300)
    constant   1/(S·L) with a fixed length L, so that long replies weigh no less a token (Dr. GRPO, arXiv 2503.20783)
    """
    mask = sequences.mask.float()
    if mode == "token":
        return mask / max(1, tokens)
    if mode == "sequence":
        return mask / (max(1, count) * sequences.lengths(mask).clamp(min=1))
    assert length is not None
    return mask / (max(1, count) * length)
