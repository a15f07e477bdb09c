"""What a training step did, in numbers. A figure over no token, or over no step, is left out: it is not 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import StepResult


def step_metrics(result: StepResult, sequences: Sequence[TrainingSequence], config: TrainerConfig) -> dict[str, float]:
    """What a step over `sequences` did. Means are over the tokens that were computed: docs/training.md, "Health"."""
    metrics = {
        "loss": result.loss,
        "skipped_optimizer_steps": result.skipped,
        "lr": result.lr,
        "sequences": len(sequences),
        "trained_tokens": sum(int(s.loss_mask.sum()) for s in sequences),
        "computed_tokens": result.computed_tokens,
        **result.critic,
        **weight_quantiles(result.log_weights),
    }
    if result.grad_norm is not None:
        metrics["grad_norm"] = result.grad_norm
    if tokens := result.stats.tokens:
        metrics |= {
            "clipped_share": result.stats.clipped / tokens,
            "capped_share": result.stats.capped / tokens,
            "weight_mean": result.stats.weight / tokens,
            "kl_step": result.stats.kl / tokens,
            "entropy": result.stats.entropy / tokens,
        }
        if config.kl != "none":
            metrics["kl_reference"] = result.stats.kl_reference / tokens
    return metrics


def weight_quantiles(log_weights: Tensor) -> dict[str, float]:
    """The 1st, 50th and 99th percentile of p/b over any number of tokens. `log_weights`: [M] log p/b."""
    if not len(log_weights):
        return {}
    # torch.quantile refuses more than 2^24 numbers. Each percentile is one of the numbers, so it is that of p/b as of log p/b.
    found = np.quantile(log_weights.float().numpy(), [0.01, 0.5, 0.99], method="inverted_cdf")
    return dict(zip(("weight_p01", "weight_p50", "weight_p99"), np.exp(found).tolist(), strict=True))


def staleness(sequences: Sequence[TrainingSequence], version: int) -> dict[str, float]:
    """Mean and maximum of (trainer's version − token's version) over the trained tokens.

    A token of steps that a crash undid has a later version than the trainer, and counts as fresh.
    """
    if not sequences:
        return {}
    lag = torch.cat([(version - s.versions[s.loss_mask]).clamp(min=0) for s in sequences]).float()
    return {"staleness_mean": float(lag.mean()), "staleness_max": float(lag.max())}


def distance_to_teacher(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Mean of log b − log teacher over the trained tokens: an estimate of KL(behaviour‖teacher)."""
    gaps = [
        (s.behaviour_logprobs - s.teacher_logprobs)[s.loss_mask] for s in sequences if s.teacher_logprobs is not None
    ]
    return {"kl_teacher": float(torch.cat(gaps).mean())} if gaps else {}
