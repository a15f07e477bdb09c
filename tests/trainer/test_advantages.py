"""Group advantages in closed form."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.advantages import Estimator, baselines

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
