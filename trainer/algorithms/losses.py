"""Losses, divergences and the engine-trainer mismatch: pure functions of packed 1-D tensors, every one of shape [T].

Symbols: b behaviour policy (recorded by the engine), p proximal policy (the trainer's weights at the start of the step),
θ the policy being optimised, A advantage, m loss mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.config.trainer import (
    CispoObjective,
    DirectObjective,
    GspoObjective,
    PpoObjective,
    UnclippedObjective,
)
from agentrl.trainer.algorithms import objectives
from agentrl.trainer.algorithms.objectives import LOG_RATIO_BOUND
from agentrl.trainer.packing import SequenceMap

KL_ESTIMATORS = {"loss": "k3", "loss_k2": "k2", "reward": "k1"}
"""How each kind of `trainer.kl` estimates the divergence from the sampled tokens."""


@dataclass(frozen=True)
class LossStats:
    """Sums over the trained tokens, to be divided by `tokens`."""

    tokens: float = 0.0
    clipped: float = 0.0
    """Tokens at which the objective's own clip is active."""
    out_of_bounds: float = 0.0
    """Tokens whose importance weight p/b was out of its bounds."""
    importance_weight: float = 0.0
    """Sum of the importance weights, after the bounds."""
    kl_step: float = 0.0
    """Sum of k3 = e^d − 1 − d with d = log θ − log p, an estimate of KL(p‖θ) (Schulman 2020)."""
    entropy: float = 0.0
    """Sum of the entropies of θ, in nats."""
    kl_reference: float = 0.0
    """Sum of the estimates of KL(θ‖reference), where there is one."""

    def __add__(self, other: LossStats) -> LossStats:
        """Return the sums over the tokens of both."""
        return LossStats(*(own + more for own, more in zip(self.sums(), other.sums(), strict=True)))

    def sums(self) -> list[float]:
        """Return the sums in the order of the fields."""
        return list(vars(self).values())


def policy_loss(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    sequences: SequenceMap,
    config: TrainerConfig,
    m2_mask: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """Return the loss of every token, −w·objective, and its statistics.

    With the defaults that is decoupled PPO, −w·min(r·A, clip(r, 1−ε, 1+ε')·A): r = θ/p is clipped around the proximal
    policy, and w = p/b corrects for who sampled the token (Hilton et al. 2021, arXiv 2110.00641; AReaL, arXiv
    2505.24298, eq. 5).

    Args:
        logprobs: [T] log θ, the only input that carries a gradient.
        proximal_logprobs: [T] log p; for "m2po", which has no p, the behaviour's.
        behaviour_logprobs: [T] log b.
        advantages: [T] A.
        sequences: Which sequence each token is of; what its mask leaves out counts nowhere, whatever it holds.
        config: The objective with its settings.
        m2_mask: [T] bool, the tokens that "m2po" keeps of the minibatch; None: all.

    Returns:
        ([T] losses, 0 outside the mask, to be multiplied by `aggregation_weights` and summed; statistics).
    """
    mask = sequences.loss_mask
    # A position outside the mask may hold anything, infinities included; 0 · inf would be NaN.
    log_weight = torch.where(mask, proximal_logprobs - behaviour_logprobs, 0.0)
    weight, out_of_bounds = objectives.importance_weights(log_weight, sequences, config.importance)
    # The same holds for a token whose weight is 0. Only the ratio of a whole sequence is made of its dropped tokens too.
    has_ratio = mask if config.objective.kind == "gspo" else mask & (weight > 0)
    log_ratio = torch.where(has_ratio, logprobs - proximal_logprobs.detach(), 0.0)
    advantages = torch.where(mask, advantages, 0.0)
    match config.objective:
        case PpoObjective(clip_low=low, clip_high=high, dual_clip=dual_clip):
            surrogate = objectives.ppo(log_ratio, advantages, clip_low=low, clip_high=high, dual_clip=dual_clip)
        case GspoObjective(clip_low=low, clip_high=high):
            surrogate = objectives.gspo(log_ratio, advantages, sequences, clip_low=low, clip_high=high)
        case CispoObjective(clip_low=low, clip_high=high):
            surrogate = objectives.cispo(log_ratio, advantages, clip_low=low, clip_high=high)
        case UnclippedObjective(kind="sapo"):
            surrogate = objectives.sapo(log_ratio, advantages)
        case UnclippedObjective(kind="reinforce"):
            surrogate = objectives.reinforce(log_ratio, advantages)
        case DirectObjective(kind="m2po"):
            surrogate = objectives.m2po(log_ratio, advantages, mask if m2_mask is None else m2_mask)
        case DirectObjective(kind="likelihood"):
            surrogate = objectives.likelihood(torch.where(mask, logprobs, 0.0), advantages)
    loss = -torch.where(mask, weight * surrogate.value, 0.0)
    with torch.no_grad():
        stats = LossStats(
            tokens=float(mask.sum()),
            clipped=float((mask & surrogate.clipped).sum()),
            out_of_bounds=float(out_of_bounds.sum()),
            importance_weight=float((mask * weight).sum()),
            kl_step=float(k3(log_ratio[mask]).sum()),
        )
    return loss, stats


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """Return estimates of KL(θ‖reference) from tokens that θ sampled; d = log θ − log reference (Schulman 2020).

    k1 = d, unbiased, of high variance; k2 = d²/2, biased, of low variance; k3 = e^−d − 1 + d, unbiased, never negative.

    Their gradients are another matter, and decide where each may stand. In the reward, k1 gives ∇KL(θ‖reference) of whole trajectories,
    and k2 and k3 give neither that nor the gradient of any other divergence. In the loss, of the divergence at each token, k2 gives
    ∇KL(θ‖reference), k3 gives ∇KL(reference‖θ), and k1 gives 0.

    Args:
        logprobs: [T] log θ.
        reference_logprobs: [T] log reference.
        estimator: k1, k2 or k3.

    Returns:
        [T] estimates.
    """
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return k3(-difference)


def k3(log_ratio: Tensor) -> Tensor:
    """Return e^x − 1 − x, never negative, with x held to ±LOG_RATIO_BOUND. `log_ratio`: [T] x."""
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(bounded) - bounded


def regularizers(
    logprobs: Tensor,
    entropies: Tensor,
    reference_logprobs: Tensor | None,
    stats: LossStats,
    config: TrainerConfig,
) -> tuple[Tensor, LossStats]:
    """Return what is added to the loss of every token, β·KL(θ‖reference) − c·H(θ), and the statistics with both.

    Args:
        logprobs: [T] log θ.
        entropies: [T] H of the distribution that each token was drawn from, in nats.
        reference_logprobs: [T] log reference, where there is one.
        stats: The statistics so far.
        config: β and c.

    Returns:
        ([T] addends, statistics).
    """
    added = torch.zeros_like(logprobs)
    stats = replace(stats, entropy=float(entropies.detach().sum()))
    if reference_logprobs is not None and config.kl.kind != "none":
        kl = kl_estimate(logprobs, reference_logprobs, KL_ESTIMATORS[config.kl.kind])
        stats = replace(stats, kl_reference=float(kl.detach().sum()))
        if config.kl.kind != "reward":
            added = added + config.kl.coef * kl
    if config.entropy_coef:
        added = added - config.entropy_coef * entropies
    return added, stats


def interpolated_proximal(logprobs: Tensor, behaviour_logprobs: Tensor, versions: Tensor, version: int) -> Tensor:
    """Return log p between log b and log θ, by how old the token is: no forward pass of its own.

    log p = log b + α·(log θ − log b) with α = (v − u) / (v + 1 − u), where u sampled the token, v is the version at the start
    of the step, and θ is on its way to v + 1. Fresh tokens have p = b. (The form of AReaL's documentation; its code counts versions one lower.)

    Args:
        logprobs: [T] log θ, without a gradient.
        behaviour_logprobs: [T] log b.
        versions: [T] u.
        version: v.

    Returns:
        [T] log p.
    """
    age = (version - versions).clamp(min=0)
    return behaviour_logprobs + age / (age + 1) * (logprobs - behaviour_logprobs)


@dataclass(frozen=True)
class Mismatch:
    """The mismatch: how far the engine's logprobs are from the trainer's, for the same tokens under the same weights."""

    tokens: int
    mean_abs: float
    """Mean |Δlogprob|."""
    max_abs: float
    k3: float
    """Mean of e^d − 1 − d with d = trainer − engine: an estimate of KL(engine‖trainer)."""


def mismatch(engine_logprobs: Tensor, trainer_logprobs: Tensor) -> Mismatch | None:
    """Compare the engine's logprobs of some tokens with the trainer's.

    Args:
        engine_logprobs: [T].
        trainer_logprobs: [T], of the same tokens.

    Returns:
        The comparison; None for no tokens.
    """
    if engine_logprobs.numel() == 0:
        return None
    difference = (trainer_logprobs - engine_logprobs).double()
    absolute = difference.abs()
    return Mismatch(difference.numel(), float(absolute.mean()), float(absolute.max()), float(k3(difference).mean()))
