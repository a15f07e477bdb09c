"""Advantages from a critic against the formula as it is written, and a critic that learns."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.record.credit import immediate_rewards
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.episodes import FinishedEpisode
from agentrl.trainer.model.critic import Critic, gae
from agentrl.trainer.packing import pack_sequences
from agentrl.trainer.policy import Policy
from agentrl.trainer.sequences import training_sequences
from tests.record.test_returns import record_of
from tests.trainer.random_trees import random_tree


@given(st.integers(0, 1000), st.floats(0.5, 1), st.floats(0, 1), st.booleans())
def test_gae_is_its_sum_over_later_steps(seed: int, discount: float, decay: float, by_turn: bool) -> None:
    (batch,) = pack_sequences(random_tree(random.Random(seed), depth=2), 1000)
    values = torch.randn(batch.trained_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ends = torch.randn(batch.sequence_count, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    got = gae(batch, values, ends, discount=discount, decay=decay, by_turn=by_turn)
    for path in batch.sequence_index.unique().tolist():
        rows = [t for t in range(batch.trained_tokens) if batch.sequence_index[t] == path]
        steps: list[list[int]] = []
        for t in rows:
            if by_turn and steps and batch.turn_index[steps[-1][0]] == batch.turn_index[t]:
                steps[-1].append(t)
            else:
                steps.append([t])
        before = [float(values[step[0]]) for step in steps] + [float(ends[path])]
        earned = [sum(float(batch.rewards[t]) for t in step) for step in steps]
        for k, step in enumerate(steps):
            advantage = sum(
                (discount * decay) ** (j - k) * (earned[j] + discount * before[j + 1] - before[j])
                for j in range(k, len(steps))
            )
            for t in step:
                assert float(got.advantages[t]) == pytest.approx(advantage, abs=1e-6)
            assert [bool(got.value_mask[t]) for t in step] == [True] + [False] * (len(step) - 1)
            assert float(got.returns[step[0]]) == pytest.approx(advantage + before[k], abs=1e-6)


def two_turns(last_trained: bool = True) -> TokenRecord:
    record = TokenRecord()
    said = Generation(output_ids=[20, 21], logprobs=[-1.0, -1.0], versions=[VersionSpan(0, 0, 2)], finish="stop")
    first = record.add("a", None, [10, 11], said, 1.0)
    second = record.add("b", first, [10, 11, 20, 21, 12], said, 1.0)
    first.reward, second.trained = 0.25, last_trained
    return record


def test_a_turn_earns_at_its_last_token_and_one_that_is_not_trained_on_at_what_led_to_it() -> None:
    assert immediate_rewards(two_turns(), 1.0) == [0.25, 1.0]
    config = TrainerConfig(advantage="gae")
    for trained, expected in ((True, [0, 0, 0, 0.25, 0, 0, 1.0]), (False, [0, 0, 0, 1.25, 0, 0, 0])):
        episode = FinishedEpisode(1, 1, 0, 1.0, 0, two_turns(trained))
        ((sequence,),) = training_sequences([episode], config)
        assert sequence.rewards.tolist() == expected
        assert sequence.turn_index.tolist() == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("masked", [1, 2])
def test_what_a_masked_branch_earned_reaches_the_turn_that_it_continues_wherever_it_stands(masked: int) -> None:
    record = record_of(
        [None, 0, 0, masked],
        reward=[None, *(2.0 if turn == masked else 5.0 for turn in (1, 2)), 8.0],
        truncated=[False, *(turn == masked for turn in (1, 2)), False],
    )
    config = TrainerConfig(advantage="gae", turns={"truncated": "mask", "failed": "penalise"})
    record.turns[3].failed, record.turns[3].trained = True, False
    episode = FinishedEpisode(1, 1, 0, 0.0, 0, record)
    (sequences,) = training_sequences([episode], config)
    earned = {int(i): float(r) for s in sequences for i, r in zip(s.token_ids, s.rewards, strict=True) if float(r)}
    # The untrained turn 3 hands 7 to the masked turn, which hands half of its 9 to the root.
    assert earned == {0: 4.5, 3 - masked: 5.0}


@pytest.mark.slow
def test_a_critic_learns_what_its_trajectories_earn_and_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    config = TrainerConfig(
        advantage={"kind": "gae", "critic_lr": 3e-4, "gae_lambda": 1.0},
        optimizer={"lr": 1e-6, "warmup_steps": 0},
    )
    policy = Policy(NANO, config)
    sequences = random_tree(random.Random(4), depth=2)
    results = [policy.step(sequences).critic for _ in range(30)]
    assert results[-1]["value_loss"] < 0.5 * results[0]["value_loss"]
    assert results[-1]["explained_variance"] > results[0]["explained_variance"]
    policy.save(tmp_path / "step", NANO)
    other = Policy(NANO, config)
    other.load(tmp_path / "step")
    assert policy.critic is not None
    assert other.critic is not None
    (batch,) = pack_sequences(sequences, 1000)
    with torch.no_grad():
        assert torch.equal(policy.critic(batch, batch.source), other.critic(batch, batch.source))


def test_what_was_cut_off_is_worth_what_the_critic_expects_there_and_what_ended_nothing() -> None:
    config = TrainerConfig(advantage={"kind": "gae", "gae_lambda": 0.0, "discount": 0.5})
    critic = Critic(NANO, config)
    critic.requires_grad_(False)
    critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    tree = random_tree(random.Random(4), depth=2)
    (batch,) = pack_sequences([replace(s, truncated=number % 2 == 0) for number, s in enumerate(tree)], 1000)
    assert int((batch.truncated_end >= 0).sum()) == -(-len(tree) // 2)
    advantages, values = critic.advantages_and_returns(batch).advantages, critic(batch, batch.source)
    for index in batch.sequence_index.unique().tolist():
        end, last = int(batch.truncated_end[index]), int((batch.sequence_index == index).nonzero()[-1])
        following = 0.5 * float(critic(batch, torch.tensor([end]))) if end >= 0 else 0.0
        expected = float(batch.rewards[last]) + following - float(values[last])
        assert float(advantages[last]) == pytest.approx(expected, abs=1e-4)


def test_its_loss_is_half_the_mean_squared_distance_to_the_returns() -> None:
    config = TrainerConfig(advantage="gae")
    critic = Critic(NANO, config)
    (batch,) = pack_sequences(random_tree(random.Random(1), depth=1), 1000)
    estimates = critic.advantages_and_returns(batch)
    assert estimates.old_values.tolist() == [0.0] * batch.trained_tokens
    count = batch.trained_tokens
    expected = 0.5 * float(estimates.returns.square().sum()) / count
    assert float(critic.loss(batch, estimates, count).detach()) == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        critic.head.bias.add_(5.0)
    far = critic.loss(batch, estimates, count)
    assert float(far.detach()) == pytest.approx(0.5 * float((5.0 - estimates.returns).square().sum()) / count, rel=1e-5)
