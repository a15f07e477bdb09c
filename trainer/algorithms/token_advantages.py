"""Add to the advantages that the tokens of a step come with: a KL penalty, a teacher, whitening over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.config.trainer import KlPenalty, TeacherConfig, TrainerConfig
from agentrl.record.credit import EPSILON
from agentrl.trainer.packing import Pack, TrainingSequence


def with_kl_penalty(
    pack: Pack, logprobs: Tensor, reference_logprobs: Tensor, config: KlPenalty, *, in_reward: bool
) -> Pack:
    """Return the pack whose tokens each pay β·k_t, k = log p − log reference, for being unlike the reference.

    With a critic it is taken off the token's reward, so that γ, λ and the critic see it. Without, a token's advantage becomes
    A_t − β·Σ_{i≥t} k_i, over the trained tokens of the same trajectory (REINFORCE++, arXiv 2501.03262, eq. 3).

    Args:
        pack: The pack.
        logprobs: [M] log p, without a gradient.
        reference_logprobs: [M] log reference, without a gradient.
        config: β.
        in_reward: Whether there is a critic.

    Returns:
        The pack with other rewards or advantages.
    """
    kl = logprobs - reference_logprobs  # k1
    if in_reward:
        return replace(pack, rewards=pack.rewards - config.coef * kl)
    total = pack.sequence_map.sum(kl)
    cumulative = torch.cat([kl.new_zeros(1), kl.cumsum(0)])  # [M+1], over all trajectories of the pack
    first = torch.searchsorted(pack.sequence_index, pack.sequence_index)  # [M] the first token of its trajectory
    before = cumulative[:-1] - cumulative[first]
    return replace(pack, advantages=pack.advantages - config.coef * (total - before))


def with_distillation(pack: Pack, logprobs: Tensor, config: TeacherConfig) -> Pack:
    """Return the pack with the advantages A_t + c·(log q_t − log p_t) of on-policy distillation.

    Each sampled token is worth what the teacher q thinks of it, so the policy descends KL(p‖q) on its own samples
    (Agarwal et al. 2024, arXiv 2306.13649; Lu et al. 2025, "On-Policy Distillation").

    Args:
        pack: The pack. One without a teacher stays as it is.
        logprobs: [M] log p, without a gradient.
        config: c.

    Returns:
        The pack with other advantages.
    """
    if pack.teacher_logprobs is None:
        return pack
    return replace(pack, advantages=pack.advantages + config.coef * (pack.teacher_logprobs - logprobs))


def whitened(
    advantages: Sequence[Tensor], all_reduce: Callable[[Sequence[float]], list[float]] = list
) -> Iterator[Tensor]:
    """Yield the advantages with mean 0 and deviation 1 over all their N tokens, the deviation by N − 1.

    Args:
        advantages: [pack][M] tensors.
        all_reduce: What adds numbers up over the trainer's ranks.

    Yields:
        One tensor a pack.
    """
    everything = [values.double() for values in advantages]
    count, total = all_reduce([float(sum(map(len, everything))), float(sum(values.sum() for values in everything))])
    mean = total / max(1.0, count)
    (squares,) = all_reduce([float(sum((values - mean).square().sum() for values in everything))])
    deviation = (squares / max(1.0, count - 1)) ** 0.5 + EPSILON
    for values in advantages:
        yield (values - mean) / deviation


def has_gradient(sequence: TrainingSequence, config: TrainerConfig) -> bool:
    """Return whether a sequence can move the policy.

    One whose advantages are all 0 cannot, where the advantages that it comes with are all there is. "m2po" looks at every token to
    choose those it keeps.

    Args:
        sequence: The sequence.
        config: What else gives a gradient.

    Returns:
        Whether it must be computed.
    """
    advantages_are_all = (
        config.kl.kind == "none"
        and config.teacher is None
        and not config.entropy_coef
        and config.advantage.kind in ("grpo", "dr_grpo", "rloo")
        and config.objective.kind != "m2po"
    )
    return not advantages_are_all or bool((sequence.advantages[sequence.loss_mask] != 0).any())
