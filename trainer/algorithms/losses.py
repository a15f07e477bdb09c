"""Losses and scores: pure functions of packed 1-D tensors, every one of shape [T].

Symbols: b behaviour policy (recorded by the engine), p proximal policy (the trainer's weights at the start of the step),
θ the policy being optimised, A advantage, m loss mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.trainer.algorithms import objectives
from agentrl.trainer.algorithms.objectives import LOG_RATIO_BOUND, Sequences


@dataclass(frozen=True)
class LossStats:
    """Sums over the trained tokens, to be divided by `tokens`."""

    tokens: float
    clipped: float
    """Tokens at which the objective's own bound is active."""
    capped: float
    """Tokens whose weight p/b was outside its bounds."""
    weight: float
    """Sum of the weights p/b, after the bounds."""
    kl: float
    """Sum of k3 = e^d − 1 − d with d = log θ − log p, an estimate of KL(p‖θ) (Schulman 2020)."""
    entropy: float = 0.0
    """Sum of the entropies of θ, in nats."""
    kl_reference: float = 0.0
    """Sum of the estimates of KL(θ‖reference), where there is one."""


def policy_loss(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    sequences: Sequences,
    config: TrainerConfig,
    kept: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """The loss of every token, −w·objective, and its statistics.

    With the defaults that is decoupled PPO, −w·min(r·A, clip(r, 1−ε, 1+ε')·A): r = θ/p is clipped around the proximal
    policy, and w = p/b corrects for who sampled the token (Hilton et al. 2021, arXiv 2110.00641; AReaL, arXiv
    2505.24298, eq. 5).

    Args:
        logprobs: [T] log θ, the only input that carries a gradient.
        proximal_logprobs: [T] log p; for "m2po", which has no p, the behaviour's.
        behaviour_logprobs: [T] log b.
        advantages: [T].
        sequences: whose tokens these are; what its mask leaves out counts nowhere, whatever it holds.
        kept: [T] bool, the tokens that "m2po" keeps of the minibatch; None: all.

    Returns:
        [T], 0 outside the mask, to be weighed by `token_shares` and summed.
    """
    mask = sequences.mask
    # A position outside the mask may hold anything, infinities included; 0 · inf would be NaN.
    log_weight = torch.where(mask, proximal_logprobs - behaviour_logprobs, 0.0)
    weight, capped = objectives.correction(
        log_weight,
        sequences,
        mode=config.importance_weight_mode,
        floor=config.importance_weight_min,
        cap=config.importance_weight_max,
    )
    # The same holds for a token whose weight is 0. Only the ratio of a whole sequence is made of its dropped tokens too.
    counted = mask if config.objective == "gspo" else mask & (weight > 0)
    log_ratio = torch.where(counted, logprobs - proximal_logprobs.detach(), 0.0)
    advantages = torch.where(mask, advantages, 0.0)
    clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    match config.objective:
        case "ppo":
            surrogate = objectives.ppo(log_ratio, advantages, **clips, dual_clip=config.dual_clip)
        case "gspo":
            surrogate = objectives.gspo(log_ratio, advantages, sequences, **clips)
        case "cispo":
            surrogate = objectives.cispo(log_ratio, advantages, **clips)
        case "sapo":
            taus = {"tau_positive": config.tau_positive, "tau_negative": config.tau_negative}
            surrogate = objectives.sapo(log_ratio, advantages, **taus)
        case "m2po":
            surrogate = objectives.m2po(log_ratio, advantages, mask if kept is None else kept)
        case "likelihood":
            surrogate = objectives.likelihood(torch.where(mask, logprobs, 0.0), advantages)
        case "reinforce":
            surrogate = objectives.reinforce(log_ratio, advantages)
    loss = -torch.where(mask, weight * surrogate.value, 0.0)
    with torch.no_grad():
        stats = LossStats(
            tokens=float(mask.sum()),
            clipped=float((mask & surrogate.bounded).sum()),
            capped=float(capped.sum()),
            weight=float((mask * weight).sum()),
            kl=float(k3(log_ratio[mask]).sum()),
        )
    return loss, stats


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """[T] estimates of KL(θ‖reference) from tokens that θ sampled; d = log θ − log reference (Schulman 2020).

    k1 = d, unbiased, of high variance; k2 = d²/2, biased, of low variance; k3 = e^−d − 1 + d, unbiased, never negative.

    Their gradients are another matter, and decide where each may stand. In the reward, k1 gives ∇KL(θ‖reference) of whole trajectories,
    and k2 and k3 give neither that nor the gradient of any other divergence. In the loss, of the divergence at each token, k2 gives
    ∇KL(θ‖reference), k3 gives ∇KL(reference‖θ), and k1 gives 0.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return k3(-difference)


def k3(log_ratio: Tensor) -> Tensor:
    """e^x − 1 − x, never negative, with x held to ±LOG_RATIO_BOUND."""
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(bounded) - bounded


def regularizers(
    logprobs: Tensor, entropy: Tensor, reference: Tensor | None, stats: LossStats, config: TrainerConfig
) -> tuple[Tensor, LossStats]:
    """What is added to the loss of every token, β·KL(θ‖reference) − c·H(θ), and the statistics with both.

    All [T]. `reference`: log probabilities under the reference, where there is one.
    """
    extra = torch.zeros_like(logprobs)
    stats = replace(stats, entropy=float(entropy.detach().sum()))
    if reference is not None:
        kl = kl_estimate(logprobs, reference, config.kl_form)
        stats = replace(stats, kl_reference=float(kl.detach().sum()))
        if config.kl == "loss":
            extra = extra + config.kl_coef * kl
    if config.entropy_coef:
        extra = extra - config.entropy_coef * entropy
    return extra, stats


def interpolated(logprobs: Tensor, behaviour: Tensor, versions: Tensor, version: int) -> Tensor:
    """[T] log p between log b and log θ, by how old the token is: no forward pass of its own (the form of AReaL's documentation; its
    code counts versions one lower, docs/objectives.md).

    log p = log b + α·(log θ − log b) with α = (v − u) / (v + 1 − u), where u sampled the token, v is the version at the start
    of the step, and θ is on its way to v + 1. Fresh tokens have p = b. `logprobs`: log θ, without a gradient.
    """
    age = (version - versions).clamp(min=0)
    return behaviour + age / (age + 1) * (logprobs - behaviour)


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
    return Mismatch(difference.numel(), float(absolute.mean()), float(absolute.max()), float(k3(difference).mean()))
