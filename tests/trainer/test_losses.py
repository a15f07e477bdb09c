"""What a loss leaves out and counts; logprobs and mismatch in closed form. test_objectives.py holds the objectives to
their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.config import TrainerConfig
from agentrl.trainer.losses import mismatch, policy_loss, token_logprobs
from agentrl.trainer.objectives import Sequences

CONFIG = TrainerConfig(clip_low=0.2, clip_high=0.28, weight_cap=2.0)


def one_sequence(*mask: bool) -> Sequences:
    return Sequences(torch.zeros(len(mask), dtype=torch.long), 1, torch.tensor(mask))


def test_what_lies_outside_the_mask_may_be_infinite() -> None:
    theta = torch.tensor([0.0, -1.0], requires_grad=True)
    others = torch.tensor([-torch.inf, -1.0])
    advantages = torch.tensor([torch.nan, 2.0])
    losses, stats = policy_loss(theta, others, others, advantages, one_sequence(False, True), CONFIG)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert losses.tolist() == [0.0, -2.0]
    assert theta.grad is not None
    assert theta.grad.tolist() == [0.0, -2.0]
    assert stats.tokens == 1


def test_the_statistics_count_clipped_and_capped_tokens() -> None:
    zero = torch.zeros(3)
    _, stats = policy_loss(
        torch.tensor([1.0, 0.0, 0.0]),
        zero,
        torch.tensor([0.0, 0.0, -3.0]),
        torch.ones(3),
        one_sequence(True, True, True),
        CONFIG.model_copy(update={"weight_mode": "mask"}),
    )
    assert (stats.tokens, stats.clipped, stats.capped, stats.weight) == (3, 1, 1, 2)
    assert stats.kl == pytest.approx(np.e - 2, rel=1e-6)


def test_token_logprobs_are_those_of_a_tempered_softmax() -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    targets, temperature = torch.tensor([0, 3, 10, 4, 4]), torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1])
    scored = token_logprobs(logits, targets, temperature)
    expected = [torch.log_softmax(logits[t] / temperature[t], 0)[targets[t]] for t in range(5)]
    assert torch.allclose(scored, torch.stack(expected), atol=1e-6)


def test_mismatch_is_zero_for_equal_logprobs_and_known_for_a_shift() -> None:
    logprobs = torch.tensor([-0.5, -1.5])
    same = mismatch(logprobs, logprobs)
    assert same is not None
    assert (same.tokens, same.mean_abs, same.k3) == (2, 0.0, 0.0)
    shifted = mismatch(logprobs, logprobs + 0.5)
    assert shifted is not None
    assert shifted.max_abs == pytest.approx(0.5)
    assert shifted.k3 == pytest.approx(np.exp(0.5) - 1.5)
    assert mismatch(torch.empty(0), torch.empty(0)) is None
