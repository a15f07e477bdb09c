"""What a loss leaves out and counts; logprobs and mismatch in closed form. test_objectives.py holds the objectives to
their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.config import TrainerConfig
from agentrl.trainer.algorithms.losses import (
    KL_ESTIMATORS,
    interpolated_proximal,
    kl_estimate,
    mismatch,
    policy_loss,
    regularizers,
)
from agentrl.trainer.model.packed_model import logprobs_and_entropies
from agentrl.trainer.packing import SequenceMap

CONFIG = TrainerConfig(objective={"clip_low": 0.2, "clip_high": 0.28}, importance={"max": 2.0})


def one_sequence(*mask: bool) -> SequenceMap:
    return SequenceMap(torch.zeros(len(mask), dtype=torch.long), 1, torch.tensor(mask))


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
        TrainerConfig(importance={"kind": "mask", "max": 2.0}),
    )
    assert (stats.tokens, stats.clipped, stats.out_of_bounds, stats.importance_weight) == (3, 1, 1, 2)
    assert stats.kl_step == pytest.approx(np.e - 2, rel=1e-6)


def test_token_logprobs_are_those_of_a_tempered_softmax() -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    targets, temperature = torch.tensor([0, 3, 10, 4, 4]), torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1])
    scored, _ = logprobs_and_entropies(logits, targets, temperature)
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


def test_kl_estimates_are_their_formulas_and_average_to_the_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    theta, reference = (
        torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0) for _ in range(2)
    )
    divergence = float((theta.exp() * (theta - reference)).sum())
    for estimator in ("k1", "k3"):
        mean = float((theta.exp() * kl_estimate(theta, reference, estimator)).sum())
        assert mean == pytest.approx(divergence, rel=1e-9)
    assert torch.allclose(kl_estimate(theta, reference, "k2"), (theta - reference) ** 2 / 2)
    assert bool((kl_estimate(theta, reference, "k3") >= 0).all())


def test_each_kl_estimator_gives_the_gradient_of_a_divergence_where_it_stands_and_not_elsewhere() -> None:
    """A softmax over six tokens, every expectation a sum over all of them: no sampling, no tolerance but float64's."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, logits)[0]

    theta = torch.log_softmax(logits, 0)
    probabilities, fixed = theta.detach().exp(), theta.detach()
    reverse = gradient((torch.log_softmax(logits, 0).exp() * (torch.log_softmax(logits, 0) - reference)).sum())
    forward = gradient((reference.exp() * (reference - torch.log_softmax(logits, 0))).sum())

    def in_the_reward(estimator: str) -> torch.Tensor:
        return gradient((probabilities * kl_estimate(fixed, reference, estimator) * torch.log_softmax(logits, 0)).sum())

    def in_the_loss(estimator: str) -> torch.Tensor:
        return gradient((probabilities * kl_estimate(torch.log_softmax(logits, 0), reference, estimator)).sum())

    assert torch.allclose(in_the_reward("k1"), reverse)
    assert torch.allclose(in_the_loss("k2"), reverse)
    assert torch.allclose(in_the_loss("k3"), forward)
    for estimator in ("k2", "k3"):
        wrong = in_the_reward(estimator)
        assert not any(torch.allclose(wrong, right, rtol=0.2) for right in (reverse, forward))
    assert torch.allclose(in_the_loss("k1"), torch.zeros(6, dtype=torch.float64))
    assert KL_ESTIMATORS == {"reward": "k1", "loss_k2": "k2", "loss": "k3"}


def test_the_loss_grows_with_the_divergence_and_falls_with_the_entropy() -> None:
    theta = torch.tensor([-1.0, -2.0], requires_grad=True)
    entropy = torch.tensor([0.5, 0.25])
    reference = torch.tensor([-1.5, -2.0])
    _, stats = policy_loss(theta, theta.detach(), theta.detach(), torch.ones(2), one_sequence(True, True), CONFIG)
    config = TrainerConfig(kl={"kind": "loss_k2", "coef": 0.1}, entropy_coef=0.01)
    extra, stats = regularizers(theta, entropy, reference, stats, config)
    assert extra.tolist() == pytest.approx([0.1 * 0.125 - 0.005, -0.0025])
    assert (stats.kl_reference, stats.entropy) == pytest.approx((0.125, 0.75))
    plain, _ = regularizers(theta, entropy, None, stats, TrainerConfig())
    assert plain.tolist() == [0.0, 0.0]


def test_an_interpolated_proximal_policy_moves_from_behaviour_to_policy_with_age() -> None:
    theta, behaviour = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-3.0, -3.0, -3.0, -3.0])
    versions = torch.tensor([7, 6, 4, 9])  # the last comes from a restart whose later steps were lost
    proximal = interpolated_proximal(theta, behaviour, versions, 7)
    assert proximal.tolist() == pytest.approx([-3.0, -2.0, -1.5, -3.0])


@pytest.mark.parametrize("far", [-1e30, -100.0, 100.0, 1e30])
def test_divergences_stay_finite_however_far_two_policies_are(far: float) -> None:
    theta = torch.tensor([far], requires_grad=True)
    for estimator in ("k1", "k3"):
        estimate = kl_estimate(theta, torch.zeros(1), estimator)
        (gradient,) = torch.autograd.grad(estimate.sum(), theta)
        assert bool(estimate.isfinite().all())
        assert bool(gradient.isfinite().all())
    far_apart = mismatch(torch.zeros(1), torch.tensor([far]))
    assert far_apart is not None
    assert np.isfinite(far_apart.k3)
