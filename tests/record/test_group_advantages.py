"""Group advantages in closed form."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.trainer import GroupAdvantage, TurnsConfig
from agentrl.record.credit import (
    Estimator,
    advantages_of,
    overlong_penalty,
    turn_advantages,
    turn_rewards,
)
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord

REWARDS = st.lists(st.floats(-5, 5), min_size=2, max_size=16)


def advantages(rewards: list[float], estimator: Estimator) -> list[float]:
    return [of for (of,) in advantages_of([[reward] for reward in rewards], estimator)]


@given(REWARDS)
def test_grpo_has_mean_zero_and_unit_spread(rewards: list[float]) -> None:
    result = advantages(rewards, "grpo")
    assert statistics.fmean(result) == pytest.approx(0, abs=1e-6)
    if statistics.pstdev(rewards) > 0.01:
        assert statistics.stdev(result) == pytest.approx(1, rel=1e-3)


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


def test_a_penalised_turn_pays_in_its_advantage_or_to_a_critic_in_its_reward() -> None:
    record = TokenRecord()
    said = Generation(output_ids=[20], logprobs=[-1.0], versions=[VersionSpan(0, 0, 1)], finish="stop")
    first = record.add("a", None, [10], said, 1.0)
    record.add("b", first, [10, 20, 11], replace(said, finish="length"), 1.0)
    first.failed = True
    plain, penalised = TurnsConfig(), TurnsConfig(failed="penalise", truncated="penalise")
    assert turn_rewards(record, 1.0, plain) == [0.0, 1.0]
    assert turn_rewards(record, 1.0, penalised) == [-1.0, 0.0]
    assert turn_advantages([record], [1.0], GroupAdvantage(kind="dr_grpo"), penalised) == [[-1.0, -1.0]]


def test_overlong_replies_lose_reward_softly() -> None:
    lengths = {10: 0.0, 80: 0.0, 85: 0.25, 90: 0.5, 100: 1.0, 500: 1.0}
    assert {length: overlong_penalty(length, 100) for length in lengths} == pytest.approx(lengths)
    assert overlong_penalty(10_000, None) == 0.0
