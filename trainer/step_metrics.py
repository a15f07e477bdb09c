"""The metrics of a training step. A figure over no token, or over no step, is left out: it is not 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.record.credit import mean, role_reward
from agentrl.record.trajectory import TokenRecord
from agentrl.store.episodes import FinishedEpisode
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.step_result import StepResult


def step_metrics(result: StepResult, sequences: Sequence[TrainingSequence], config: TrainerConfig) -> dict[str, float]:
    """Return what a step did. Means are over the tokens that were computed (docs/metrics.md).

    Args:
        result: The step's result.
        sequences: What it was over.
        config: How the policy learns.

    Returns:
        Figures by name.
    """
    metrics = {
        "loss": result.loss,
        "skipped_optimizer_steps": result.skipped,
        "lr": result.lr,
        "sequences": len(sequences),
        "trained_tokens": sum(int(s.loss_mask.sum()) for s in sequences),
        "computed_tokens": result.computed_tokens,
        **result.critic,
        **importance_weight_quantiles(result.log_importance_weights),
    }
    if result.grad_norm is not None:
        metrics["grad_norm"] = result.grad_norm
    if tokens := result.stats.tokens:
        metrics |= {
            "clipped_share": result.stats.clipped / tokens,
            "importance_weight_out_of_bounds_share": result.stats.out_of_bounds / tokens,
            "importance_weight_mean": result.stats.importance_weight / tokens,
            "kl_step": result.stats.kl_step / tokens,
            "entropy": result.stats.entropy / tokens,
        }
        if config.kl.kind != "none":
            metrics["kl_reference"] = result.stats.kl_reference / tokens
    return metrics


def of_role(role: str, name: str) -> str:
    """Return the name of a figure of one role; of the role "", which all are together, its own."""
    return f"role_{role}_{name}" if role else name


def metrics_by_role(
    results: Mapping[str, StepResult],
    sequences: Sequence[TrainingSequence],
    episodes: Sequence[FinishedEpisode],
    config: TrainerConfig,
) -> dict[str, float]:
    """Return what a step did to the policy of each role, where roles have adapters of their own, and what these had earned and said.

    Args:
        results: The steps by role.
        sequences: What they were over.
        episodes: What these were made of.
        config: How the policies learn.

    Returns:
        The figures of `step_metrics`, the mean reward of the role in its episodes, and the mean number of tokens of its replies, as
        `role_NAME_FIGURE`; {} where there is one policy.
    """
    metrics: dict[str, float] = {}
    for role, result in results.items():
        if not role:
            continue
        figures = step_metrics(result, [s for s in sequences if s.adapter == role], config)
        own = [(e, [turn for turn in e.record.turns if turn.adapter == role]) for e in episodes]
        rewards = [mean([role_reward(turn, e.reward) for turn in turns]) for e, turns in own if turns]
        lengths = [float(len(turn.output_ids)) for _, turns in own for turn in turns]
        figures |= {"reward_mean": mean(rewards), "reply_tokens_mean": mean(lengths)}
        metrics |= {of_role(role, name): value for name, value in figures.items()}
    return metrics


def importance_weight_quantiles(log_importance_weights: Tensor) -> dict[str, float]:
    """Return the 1st, 50th and 99th percentile of p/b over any number of tokens.

    Args:
        log_importance_weights: [M] log p/b.

    Returns:
        Figures by name; {} for no token.
    """
    if not len(log_importance_weights):
        return {}
    # torch.quantile refuses more than 2^24 numbers. Each percentile is one of the numbers, so it is that of p/b as of log p/b.
    found = np.quantile(log_importance_weights.float().numpy(), [0.01, 0.5, 0.99], method="inverted_cdf")
    return dict(
        zip(
            ("importance_weight_p01", "importance_weight_p50", "importance_weight_p99"),
            np.exp(found).tolist(),
            strict=True,
        )
    )


def staleness(sequences: Sequence[TrainingSequence], version: int) -> dict[str, float]:
    """Return mean and maximum of (trainer's version − token's version) over the trained tokens.

    A token of steps that a crash undid has a later version than the trainer, and counts as fresh.

    Args:
        sequences: The batch.
        version: The trainer's version.

    Returns:
        Figures by name; {} for no sequence.
    """
    if not sequences:
        return {}
    lag = torch.cat([(version - s.versions[s.loss_mask]).clamp(min=0) for s in sequences]).float()
    return {"staleness_mean": float(lag.mean()), "staleness_max": float(lag.max())}


def altered_sampling(records: Sequence[TokenRecord]) -> dict[str, float]:
    """Return which share of the sampled tokens, of roles that are trained on, is of turns with an altered sampling.

    Args:
        records: The batch, before anything in it is masked.

    Returns:
        Figures by name; {} for no token.
    """
    turns = [turn for record in records for turn in record.turns if turn.trained]
    if not (tokens := sum(len(turn.output_ids) for turn in turns)):
        return {}
    return {"altered_sampling_share": sum(len(turn.output_ids) for turn in turns if turn.alterations) / tokens}


def distance_to_teacher(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Return the mean of log b − log teacher over the trained tokens: an estimate of KL(behaviour‖teacher).

    Args:
        sequences: The batch.

    Returns:
        Figures by name; {} without a teacher.
    """
    gaps = [
        (s.behaviour_logprobs - s.teacher_logprobs)[s.loss_mask] for s in sequences if s.teacher_logprobs is not None
    ]
    return {"kl_teacher": float(torch.cat(gaps).mean())} if gaps else {}
