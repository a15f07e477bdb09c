"""Decoupled PPO against an independent float64 evaluation of its formula, and against finite differences."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.losses import decoupled_ppo_loss, mismatch, token_logprobs

BOUNDS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "weight_cap": 2.0}


def formula(
    theta: np.ndarray,
    proximal: np.ndarray,
    behaviour: np.ndarray,
    advantage: np.ndarray,
    mask: np.ndarray,
    mode: str,
) -> float:
    """−Σ over masked tokens, written token by token from the formula."""
    total = 0.0
    for t in range(len(theta)):
        if not mask[t]:
            continue
        r = np.exp(theta[t] - proximal[t])
        w = np.exp(proximal[t] - behaviour[t])
        if w > BOUNDS["weight_cap"]:
            w = BOUNDS["weight_cap"] if mode == "truncate" else 0.0
        total -= w * min(r * advantage[t], min(max(r, 1 - 0.2), 1 + 0.28) * advantage[t])
    return total


def random_batch(seed: int, tokens: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    behaviour = -rng.exponential(1.0, tokens)
    proximal = behaviour + rng.normal(0, 0.5, tokens)
    theta = proximal + rng.normal(0, 0.3, tokens)
    return [theta, proximal, behaviour, rng.normal(0, 1, tokens), rng.random(tokens) < 0.7]


def loss_of(batch: list[np.ndarray], mode: Literal["truncate", "mask"]) -> tuple[torch.Tensor, torch.Tensor]:
    theta = torch.tensor(batch[0], dtype=torch.float64, requires_grad=True)
    rest = [torch.tensor(column) for column in batch[1:]]
    loss, _ = decoupled_ppo_loss(theta, rest[0], rest[1], rest[2], rest[3], weight_mode=mode, **BOUNDS)
    return loss, theta


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@given(seed=st.integers(0, 2**32 - 1), tokens=st.integers(1, 200))
def test_the_loss_is_the_formula(mode: Literal["truncate", "mask"], seed: int, tokens: int) -> None:
    batch = random_batch(seed, tokens)
    loss, _ = loss_of(batch, mode)
    assert float(loss.detach()) == pytest.approx(formula(*batch, mode), abs=1e-6)


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_gradient_is_a_finite_difference(mode: Literal["truncate", "mask"], seed: int) -> None:
    batch = random_batch(seed, 12)
    ratio = np.exp(batch[0] - batch[1])
    kinks = np.abs(np.stack([ratio - 0.8, ratio - 1.28])).min(axis=0)
    loss, theta = loss_of(batch, mode)
    loss.backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    step = 1e-5
    for t in range(12):
        if kinks[t] < 1e-3:
            continue
        up, down = batch[0].copy(), batch[0].copy()
        up[t] += step
        down[t] -= step
        difference = (formula(up, *batch[1:], mode) - formula(down, *batch[1:], mode)) / (2 * step)
        assert float(theta.grad[t]) == pytest.approx(difference, abs=1e-6)


@given(seed=st.integers(0, 2**32 - 1))
def test_with_p_equal_to_b_it_is_ppo(seed: int) -> None:
    theta, proximal, _, advantage, mask = random_batch(seed, 50)
    loss, _ = loss_of([theta, proximal, proximal, advantage, mask], "truncate")
    ratio = np.exp(theta - proximal)
    ppo = -(mask * np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)).sum()
    assert float(loss.detach()) == pytest.approx(ppo, abs=1e-9)


def test_what_lies_outside_the_mask_may_be_infinite() -> None:
    theta = torch.tensor([0.0, -1.0], requires_grad=True)
    others = torch.tensor([-torch.inf, -1.0])
    loss, stats = decoupled_ppo_loss(
        theta,
        others,
        others,
        torch.tensor([1.0, 2.0]),
        torch.tensor([False, True]),
        weight_mode="truncate",
        **BOUNDS,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == -2.0
    assert theta.grad is not None
    assert theta.grad.tolist() == [0.0, -2.0]
    assert stats.tokens == 1


def test_the_statistics_count_clipped_and_capped_tokens() -> None:
    zero = torch.zeros(3)
    _, stats = decoupled_ppo_loss(
        torch.tensor([1.0, 0.0, 0.0]),
        zero,
        torch.tensor([0.0, 0.0, -3.0]),
        torch.ones(3),
        torch.ones(3, dtype=torch.bool),
        weight_mode="mask",
        **BOUNDS,
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
