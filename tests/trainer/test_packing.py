"""Packing: nothing lost, nothing over the budget, and the same loss as padded batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.losses import policy_loss
from agentrl.trainer.packing import Pack, TrainingSequence, first_fit_decreasing, pack
from agentrl.trainer.policy import Policy


def sequence(length: int, generator: torch.Generator) -> TrainingSequence:
    return TrainingSequence(
        token_ids=torch.randint(9, 470, (length,), generator=generator),
        loss_mask=torch.rand(length, generator=generator) < 0.5,
        behaviour_logprobs=-torch.rand(length, generator=generator),
        versions=torch.zeros(length, dtype=torch.long),
        temperatures=torch.ones(length),
        advantages=torch.randn(length, generator=generator),
    )


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 80))
def test_every_sequence_is_in_one_bin_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = first_fit_decreasing(lengths, budget)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    for members in bins:
        assert sum(lengths[i] for i in members) <= budget or len(members) == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 1000))
def test_a_pack_holds_its_sequences_end_to_end(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequences = [sequence(length, generator) for length in lengths]
    packs = pack(sequences, 64)
    pieces = {
        tuple(batch.token_ids[start:end].tolist())
        for batch in packs
        for start, end in zip(batch.bounds.tolist(), batch.bounds.tolist()[1:], strict=False)
    }
    assert pieces == {tuple(s.token_ids.tolist()) for s in sequences}
    assert sum(batch.tokens for batch in packs) == sum(int(s.loss_mask.sum()) for s in sequences)
    for batch in packs:
        assert (batch.position_ids == 0).sum() == len(batch.bounds) - 1


def test_packed_and_padded_give_the_same_logprobs_and_loss() -> None:
    generator = torch.Generator().manual_seed(3)
    sequences = [sequence(length, generator) for length in (5, 90, 33, 64, 17, 120)]
    policy = Policy(NANO, TrainerConfig())
    reference = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager").eval()

    def loss(scored: torch.Tensor, batch: Pack) -> float:
        rest = (batch.behaviour_logprobs, batch.advantages, batch.sequences)
        return float(policy_loss(scored, scored - 0.1, *rest, TrainerConfig())[0].sum())

    with torch.no_grad():
        packed = sum(loss(policy.logprobs(batch), batch) for batch in pack(sequences, 200))

        longest = max(len(s) for s in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        attended = torch.zeros_like(ids)
        for row, s in enumerate(sequences):
            ids[row, : len(s)] = s.token_ids
            attended[row, : len(s)] = 1
        logits = reference(input_ids=ids, attention_mask=attended).logits
        padded = 0.0
        for row, s in enumerate(sequences):
            all_scores = torch.log_softmax(logits[row, : len(s) - 1], -1)
            scored = torch.cat([torch.zeros(1), all_scores.gather(-1, s.token_ids[1:, None]).squeeze(-1)])
            padded += loss(scored, pack([s], 200)[0])
    assert packed == pytest.approx(padded, rel=1e-5, abs=1e-5)
