"""Group advantages in closed form."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import GroupAdvantage, KlReward, Overlong, TrainerConfig, TurnsConfig
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.stored_episodes import FinishedEpisode
from agentrl.trainer.algorithms.advantages import (
    Estimator,
    baselines,
    overlong_penalty,
    turn_advantages,
    turn_rewards,
    whitened,
    with_kl_penalty,
)
from agentrl.trainer.packing import pack_sequences
from agentrl.trainer.sequences import training_sequences
from agentrl.trainer.step_metrics import altered_sampling
from tests.trainer.random_trees import random_tree

REWARDS = st.lists(st.floats(-5, 5), min_size=2, max_size=16)


def advantages(rewards: list[float], estimator: Estimator) -> list[float]:
    return [b.advantage(r) for r, b in zip(rewards, baselines([[r] for r in rewards], estimator), strict=True)]


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


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=8))
def test_whitening_counts_every_trained_token_once(rows: list[list[float]]) -> None:
    white = list(whitened([torch.tensor(values, dtype=torch.float64) for values in rows]))
    assert [len(values) for values in white] == [len(values) for values in rows]
    tokens = torch.cat(white)
    assert float(tokens.mean()) == pytest.approx(0, abs=1e-6)
    if statistics.pstdev([value for values in rows for value in values]) > 0.01:
        assert float(tokens.std()) == pytest.approx(1, rel=1e-3)
    assert list(whitened([])) == []


@given(st.integers(0, 1000))
def test_the_kl_penalty_is_what_the_rest_of_the_trajectory_costs(seed: int) -> None:
    config = KlReward(coef=0.5)
    (batch,) = pack_sequences(random_tree(random.Random(seed), depth=2), 1000)
    generator = torch.Generator().manual_seed(seed)
    own, reference = (torch.randn(batch.trained_tokens, generator=generator, dtype=torch.float64) for _ in range(2))
    got = with_kl_penalty(batch, own, reference, config, in_reward=False).advantages
    for t in range(batch.trained_tokens):
        rest = 0.0
        for i in range(t, batch.trained_tokens):
            if batch.sequence_index[i] == batch.sequence_index[t]:
                rest += float(own[i] - reference[i])
        assert float(got[t]) == pytest.approx(float(batch.advantages[t]) - 0.5 * rest, rel=1e-6, abs=1e-6)


def test_with_a_critic_each_token_pays_for_its_own_divergence_in_its_reward() -> None:
    (batch,) = pack_sequences(random_tree(random.Random(3), depth=2), 1000)
    own, reference = torch.randn(2, batch.trained_tokens, generator=torch.Generator().manual_seed(3))
    got = with_kl_penalty(batch, own, reference, KlReward(coef=0.5), in_reward=True)
    assert torch.allclose(got.rewards, batch.rewards - 0.5 * (own - reference))
    assert torch.equal(got.advantages, batch.advantages)


def test_a_penalised_turn_pays_in_its_advantage_or_to_a_critic_in_its_reward() -> None:
    record = TokenRecord()
    said = Generation(output_ids=[20], logprobs=[-1.0], versions=[VersionSpan(0, 0, 1)], finish="stop")
    first = record.add("a", None, [10], said, 1.0)
    record.add("b", first, [10, 20, 11], replace(said, finish="length"), 1.0)
    first.failed = True
    plain, penalised = TurnsConfig(), TurnsConfig(failed="penalise", truncated="penalise", penalty=0.25)
    assert turn_rewards(record, 1.0, plain) == [0.0, 1.0]
    assert turn_rewards(record, 1.0, penalised) == [-0.25, 0.75]
    assert turn_advantages([record], [1.0], GroupAdvantage(kind="dr_grpo"), penalised) == [[-0.25, -0.25]]


def test_overlong_replies_lose_reward_softly() -> None:
    punished = Overlong(tokens=100, margin=20)
    lengths = {10: 0.0, 80: 0.0, 85: 0.25, 90: 0.5, 100: 1.0, 500: 1.0}
    assert {length: overlong_penalty(length, punished) for length in lengths} == pytest.approx(lengths)
    assert overlong_penalty(10_000, None) == 0.0


SAID = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(SAID, st.sampled_from(["mask", "train", "refuse"]))
def test_a_turn_of_an_altered_sampling_has_no_weight_in_the_loss_and_stays_in_the_context(
    said: list[tuple[int, bool, bool]], setting: str
) -> None:
    """Of random trees: (which turn it goes on from, whether its sampling was altered, whether its role is trained on)."""
    record = TokenRecord()
    for number, (pick, altered, trained) in enumerate(said):
        parent = ([None, *record.turns])[pick % (len(record.turns) + 1)]
        ids = (parent.token_ids() if parent else []) + [100 + number]
        reply = Generation(
            output_ids=[10 + number, 50 + number], logprobs=[-1.0, -2.0], versions=[VersionSpan(0, 0, 2)], finish="stop"
        )
        turn = record.add(f"call-{number}", parent, ids, reply, 1.0)
        turn.alterations = {"top_k": 5} if altered else {}
        turn.trained = trained
    wanted = {
        10 + number
        for number, (_, altered, trained) in enumerate(said)
        if trained and not (altered and setting != "train")
    }
    config = TrainerConfig.model_validate({"turns": {"altered_sampling": setting}, "advantage": {"kind": "dr_grpo"}})
    plain = [path.token_ids for path in record.trajectories()]
    episode = FinishedEpisode(id=0, restart=0, group_id=0, reward=1.0, replayed_tokens=0, record=record)
    (sequences,) = training_sequences([episode], config)
    weighed = [t for s in sequences for t in s.token_ids[s.loss_mask].tolist() if t < 50]
    assert sorted(weighed) == sorted(wanted), "each token that is trained on is so once"
    assert all(s.token_ids.tolist() in plain for s in sequences), "whatever is masked is context of what is not"
    assert [path.token_ids for path in record.trajectories()] == plain


def test_the_share_of_altered_tokens_is_of_roles_that_are_trained_on() -> None:
    record = TokenRecord()
    reply = Generation(output_ids=[20, 21], logprobs=[-1.0] * 2, versions=[VersionSpan(0, 0, 2)], finish="stop")
    turns = [record.add(name, None, [10], reply, 1.0) for name in "abcde"]
    turns[0].alterations = turns[4].alterations = {"min_p": 0.1}
    turns[4].trained = False
    assert altered_sampling([record]) == {"altered_sampling_share": 0.25}
    assert altered_sampling([TokenRecord()]) == {}
