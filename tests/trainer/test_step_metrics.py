"""A step's figures are over the tokens that were computed, and a figure over nothing is not 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import Policy
from agentrl.trainer.step_metrics import importance_weight_quantiles, staleness, step_metrics
from tests.trainer.test_policy import sequences

OVER_COMPUTED_TOKENS = {
    "entropy",
    "clipped_share",
    "importance_weight_out_of_bounds_share",
    "importance_weight_mean",
    "kl_step",
    "importance_weight_p01",
    "importance_weight_p50",
}


def metrics_of(policy: Policy, batch: list[TrainingSequence]) -> dict[str, float]:
    return step_metrics(policy.step(batch), batch, policy.config)


def silent(batch: list[TrainingSequence]) -> list[TrainingSequence]:
    return [replace(s, advantages=torch.zeros(len(s))) for s in batch]


def test_a_batch_that_teaches_nothing_has_no_entropy() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9}))
    found = metrics_of(policy, silent(sequences(policy)))
    assert OVER_COMPUTED_TOKENS.isdisjoint(found)
    assert (found["trained_tokens"], found["computed_tokens"], found["grad_norm"]) == (60, 0, 0.0)


def test_figures_are_of_the_tokens_that_are_computed() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9}))
    batch = sequences(policy)
    some, alone = metrics_of(policy, [*silent(batch[:3]), *batch[3:]]), metrics_of(policy, batch[3:])
    assert (some["trained_tokens"], alone["trained_tokens"]) == (60, 30)
    for name in OVER_COMPUTED_TOKENS:
        assert some[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)


def test_a_gradient_that_is_not_finite_has_no_norm() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9}))
    batch = [replace(s, advantages=torch.full((20,), torch.inf)) for s in sequences(policy)]
    found = metrics_of(policy, batch)
    assert "grad_norm" not in found
    assert found["skipped_optimizer_steps"] == 1


def test_a_step_without_a_token_changes_nothing_and_says_so() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9}, advantage="gae"))
    found = metrics_of(policy, []) | staleness([], 1)
    assert found == {
        "loss": 0.0,
        "skipped_optimizer_steps": 0,
        "lr": 1e-9,
        "sequences": 0,
        "trained_tokens": 0,
        "computed_tokens": 0,
        "grad_norm": 0.0,
    }


def test_m2po_which_has_no_proximal_policy_shows_how_far_theta_is_from_who_sampled() -> None:
    settings: dict[str, Any] = {"objective": "m2po", "importance": "none", "optimizer": {"lr": 1e-9}}
    policy = Policy(NANO, TrainerConfig(**settings))
    batch = [replace(s, behaviour_logprobs=s.behaviour_logprobs - 1.5) for s in sequences(policy)]
    found = metrics_of(policy, batch)
    assert [
        found[name] for name in ("importance_weight_p01", "importance_weight_p50", "importance_weight_p99")
    ] == pytest.approx([np.exp(1.5)] * 3, rel=1e-4)


def test_percentiles_of_a_ratio_are_ratios_that_there_are() -> None:
    logs = torch.tensor([0.0, 3.0, -1.0, 0.5])
    found = list(importance_weight_quantiles(logs).values())
    expected = np.quantile(logs.exp().numpy(), [0.01, 0.5, 0.99], method="inverted_cdf")
    assert found == pytest.approx(expected.tolist(), rel=1e-6)
    assert found == pytest.approx([np.exp(-1.0), 1.0, np.exp(3.0)], rel=1e-6)
