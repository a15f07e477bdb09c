"""What a step adds to advantages: a KL penalty in closed form, and whitening."""

from __future__ import annotations

import random
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.trainer import KlPenalty
from agentrl.trainer.algorithms.token_advantages import whitened, with_kl_penalty
from agentrl.trainer.packing import pack_sequences
from tests.trainer.random_trees import random_tree


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
    config = KlPenalty(kind="reward", coef=0.5)
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
    got = with_kl_penalty(batch, own, reference, KlPenalty(kind="reward", coef=0.5), in_reward=True)
    assert torch.allclose(got.rewards, batch.rewards - 0.5 * (own - reference))
    assert torch.equal(got.advantages, batch.advantages)
