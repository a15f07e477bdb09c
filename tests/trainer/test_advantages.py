"""Group advantages in closed form."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.__main__ import whitened
from agentrl.trainer.advantages import Estimator, baselines
from agentrl.trainer.packing import TrainingSequence

REWARDS = st.lists(st.floats(-5, 5), min_size=2, max_size=16)


def advantages(rewards: list[float], estimator: Estimator) -> list[float]:
    return [b.advantage(r) for r, b in zip(rewards, baselines([[r] for r in rewards], estimator), strict=True)]


@given(REWARDS)
def test_grpo_has_mean_zero_and_unit_spread(rewards: list[float]) -> None:
    result = advantages(rewards, "grpo")
    assert statistics.fmean(result) == pytest.approx(0, abs=1e-6)
    if statistics.pstdev(rewards) > 0.01:
        assert statistics.pstdev(result) == pytest.approx(1, rel=1e-3)


@given(REWARDS)
def test_dr_grpo_is_the_distance_from_the_mean(rewards: list[float]) -> None:
    mean = statistics.fmean(rewards)
    assert advantages(rewards, "dr_grpo") == pytest.approx([r - mean for r in rewards], abs=1e-9)


@given(REWARDS)
def test_rloo_leaves_the_episode_itself_out(rewards: list[float]) -> None:
    expected = [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert advantages(rewards, "rloo") == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo"])
def test_a_uniform_group_teaches_nothing(estimator: Estimator) -> None:
    assert advantages([1.0, 1.0, 1.0], estimator) == [0.0, 0.0, 0.0]


def test_rloo_of_one_episode_is_its_reward() -> None:
    assert advantages([0.75], "rloo") == [0.75]


@given(REWARDS)
def test_reinforce_pp_leaves_the_baseline_to_the_batch(rewards: list[float]) -> None:
    mean = statistics.fmean(rewards)
    assert advantages(rewards, "reinforce_pp") == pytest.approx(rewards)
    assert advantages(rewards, "reinforce_pp_baseline") == pytest.approx([r - mean for r in rewards], abs=1e-9)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=8))
def test_whitening_counts_every_trained_token_once(rows: list[list[float]]) -> None:
    def sequence(values: list[float]) -> TrainingSequence:
        advantages = torch.tensor([99.0, *values], dtype=torch.float64)  # the first token is a prompt's
        mask = torch.tensor([False] + [True] * len(values))
        zeros = torch.zeros(len(advantages))
        return TrainingSequence(zeros, mask, zeros, zeros, zeros, advantages)

    white = whitened([sequence(values) for values in rows])
    tokens = torch.cat([s.advantages[s.loss_mask] for s in white])
    assert float(tokens.mean()) == pytest.approx(0, abs=1e-6)
    if statistics.pstdev([value for values in rows for value in values]) > 0.01:
        assert float(tokens.std(unbiased=False)) == pytest.approx(1, rel=1e-3)
    assert whitened([]) == []
