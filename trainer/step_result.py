"""The result of a training step: those of its optimizer steps, put together over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.trainer.algorithms.losses import LossStats
from agentrl.trainer.minibatches import Minibatch, PreparedPack
from agentrl.trainer.model.critic import explained_variance
from agentrl.trainer.model.ranks import Ranks


@dataclass(frozen=True)
class MinibatchResult:
    """The result of one optimizer step, on this rank."""

    loss: float
    grad_norm: float | None
    """None: it was not finite, and no step was taken."""
    stats: list[LossStats]
    """[pack]."""
    log_importance_weights: list[Tensor]
    """[pack][M] log p/b; of "m2po" log θ/b."""
    value_loss: float | None
    """The loss of the critic, where there is one, over all ranks."""
    token_figures: list[Tensor]
    """[pack][n, 5] `agentrl.trainer.token_figures`."""


@dataclass(frozen=True)
class StepResult:
    """The result of one training step, on all ranks."""

    loss: float
    """The loss of the last minibatch."""
    grad_norm: float | None
    """Before clipping, mean over minibatches; 0 where there was nothing to learn from, None where no gradient was finite."""
    lr: float
    stats: LossStats
    """Summed over minibatches."""
    skipped: int
    """Optimizer steps that were not taken, because the gradient was not finite."""
    computed_tokens: int
    """Tokens of the packs, what is shared counted once."""
    log_importance_weights: Tensor
    """[M] log p/b of every token that was computed; of "m2po", which has no p, log θ/b."""
    critic: dict[str, float]
    """`value_loss` and `explained_variance`, where there is a critic and it was trained."""
    optimizer_steps: int
    """Optimizer steps that were taken."""
    minibatches: list[list[int]]
    """[minibatch][sequence] numbers of the sequences that each held."""
    token_figures: Tensor
    """[n, 5] `agentrl.trainer.token_figures`."""


def step_result(
    minibatches: Sequence[Minibatch],
    prepared: Sequence[Sequence[PreparedPack]],
    results: Sequence[MinibatchResult],
    lr: float,
    ranks: Ranks,
) -> StepResult:
    """Put together, over all ranks, what the optimizer steps did.

    Args:
        minibatches: The minibatches of the step.
        prepared: [minibatch][pack] this rank's packs.
        results: One for each optimizer step that there was something for.
        lr: The learning rate of the last one.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        The result, the same on all ranks.
    """
    packs = [one for own in prepared for one in own]
    computed = float(sum(len(one.pack) for one in packs if one.pack.sequence_count))
    stats = sum((one for result in results for one in result.stats), LossStats())
    loss, computed, *sums = ranks.all_reduce([results[-1].loss if results else 0.0, computed, *stats.sums()])
    grad_norms = [result.grad_norm for result in results if result.grad_norm is not None]
    weights = [one for result in results for one in result.log_importance_weights]
    value_losses = [result.value_loss for result in results if result.value_loss is not None]
    figures = [one for result in results for one in result.token_figures]
    critic = {}
    if value_losses:
        estimates = [one.estimates for one in packs if one.estimates is not None]
        critic = {
            "value_loss": sum(value_losses) / len(value_losses),
            "explained_variance": explained_variance(estimates, ranks),
        }
    return StepResult(
        loss=loss,
        grad_norm=sum(grad_norms) / max(1, len(grad_norms)) if grad_norms or not results else None,
        lr=lr,
        stats=LossStats(*sums),
        skipped=len(results) - len(grad_norms),
        computed_tokens=int(computed),
        log_importance_weights=ranks.all_gather(torch.cat(weights) if weights else torch.zeros(0)),
        critic=critic,
        optimizer_steps=len(grad_norms),
        minibatches=[minibatch.sequence_numbers for minibatch in minibatches],
        token_figures=ranks.all_gather(torch.cat([torch.zeros(0, 5), *figures])),
    )
