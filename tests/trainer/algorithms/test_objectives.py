"""Every objective and every correction against an independent float64 evaluation of its formula, and against finite
differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import TrainerConfig
from agentrl.trainer.algorithms.losses import policy_loss
from agentrl.trainer.algorithms.objectives import M2PO_THRESHOLD, aggregation_weights, m2_cutoff
from agentrl.trainer.packing import SequenceMap

WIDE_GSPO = {"kind": "gspo", "clip_low": 0.2, "clip_high": 0.28}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"objective": {"dual_clip": 1.5}},
    {"importance": {"kind": "mask", "min": 0.5, "max": 2.0}},
    {"importance": {"kind": "sequence_mask", "min": 0.3, "max": 2.0}},
    {"importance": {"kind": "geometric_mask", "min": 0.7, "max": 2.0}},
    {"importance": "none", "loss_aggregation": "sequence"},
    {
        "objective": {"kind": "gspo", "clip_low": 0.05, "clip_high": 0.06},
        "importance": "none",
        "loss_aggregation": "sequence",
    },
    {"objective": WIDE_GSPO},
    {"objective": "cispo", "loss_aggregation": {"kind": "constant", "length": 7}},
    {"objective": "sapo", "loss_aggregation": "sequence"},
    {"objective": "m2po", "importance": "none"},
    {"objective": "reinforce"},
]
NAMES = ["-".join(map(str, settings.values())) or "decoupled ppo" for settings in SETTINGS]
SEEDS = st.integers(0, 2**32 - 1)


def config_of(settings: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig(**{"importance": {"max": 2.0}, **settings})


@dataclass
class Batch:
    """Sequences end to end; every sequence has one advantage."""

    theta: np.ndarray
    proximal: np.ndarray
    behaviour: np.ndarray
    advantage: np.ndarray
    mask: np.ndarray
    bounds: list[int]

    def spans(self) -> list[list[int]]:
        """The masked places of every sequence that has some."""
        spans = [
            [t for t in range(start, end) if self.mask[t]]
            for start, end in zip(self.bounds, self.bounds[1:], strict=False)
        ]
        return [span for span in spans if span]


def random_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, size=rng.integers(1, 5))
    tokens = int(lengths.sum())
    behaviour = -rng.exponential(1.0, tokens)
    proximal = behaviour + rng.normal(0, 0.5, tokens)
    advantage = np.repeat(rng.normal(0, 1, len(lengths)), lengths)
    theta = proximal + rng.normal(0, 0.3, tokens)
    return Batch(theta, proximal, behaviour, advantage, rng.random(tokens) < 0.7, [0, *np.cumsum(lengths).tolist()])


def clip(x: float, config: TrainerConfig) -> float:
    return min(max(x, 1 - getattr(config.objective, "clip_low", 0.0)), 1 + getattr(config.objective, "clip_high", 0.0))


def formula(batch: Batch, config: TrainerConfig) -> float:
    """The whole loss, token by token and sequence by sequence as the papers write it."""
    spans = batch.spans()
    tokens = sum(len(span) for span in spans)
    reference = batch.behaviour if config.objective.kind == "m2po" else batch.proximal
    log_r = batch.theta - reference
    kept = set(range(len(log_r)))
    if config.objective.kind == "m2po":
        left = sorted((t for span in spans for t in span), key=lambda t: log_r[t] ** 2)
        while left and np.mean([log_r[t] ** 2 for t in left]) > M2PO_THRESHOLD:
            left.pop()
        kept = set(left)
    total = 0.0
    for span in spans:
        log_w = [batch.proximal[t] - batch.behaviour[t] for t in span]
        whole, geometric = np.exp(sum(log_w)), np.exp(np.mean(log_w))
        s = np.exp(np.mean([log_r[t] for t in span]))
        for t in span:
            w, a, r = np.exp(batch.proximal[t] - batch.behaviour[t]), batch.advantage[t], np.exp(log_r[t])

            def inside(x: float) -> bool:
                return bool(getattr(config.importance, "min", 0.0) <= x <= getattr(config.importance, "max", np.inf))

            weight = {
                "none": 1.0,
                "truncate": min(w, getattr(config.importance, "max", np.inf)),
                "mask": w if inside(w) else 0.0,
                "sequence_mask": whole if inside(whole) else 0.0,
                "geometric_mask": w if inside(geometric) else 0.0,
            }[config.importance.kind]
            value = {
                "ppo": min(r * a, clip(r, config) * a),
                "gspo": min(s * a, clip(s, config) * a),
                "cispo": clip(r, config) * a * log_r[t],
                "sapo": 4 / (tau := 1.0 if a > 0 else 1.05) / (1 + np.exp(-tau * (r - 1))) * a,
                "m2po": r * a * (t in kept),
                "reinforce": r * a,
            }[config.objective.kind]
            if (dual_clip := getattr(config.objective, "dual_clip", None)) is not None and a < 0:
                value = max(value, dual_clip * a)
            share = {
                "token": 1 / tokens,
                "sequence": 1 / (len(spans) * len(span)),
                "constant": 1 / (len(spans) * getattr(config.loss_aggregation, "length", 1)),
            }[config.loss_aggregation.kind]
            total -= share * weight * value
    return total


def loss_of(batch: Batch, config: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    theta = torch.tensor(batch.theta, dtype=torch.float64, requires_grad=True)
    proximal, behaviour, advantage = (torch.tensor(x) for x in (batch.proximal, batch.behaviour, batch.advantage))
    lengths = torch.tensor(batch.bounds).diff()
    sequences = SequenceMap(
        torch.repeat_interleave(torch.arange(len(lengths)), lengths), len(lengths), torch.tensor(batch.mask)
    )
    reference = behaviour if config.objective.kind == "m2po" else proximal
    log_ratios = (theta - behaviour).detach()
    kept = log_ratios.square() <= m2_cutoff(log_ratios[sequences.loss_mask], M2PO_THRESHOLD)
    losses, stats = policy_loss(theta, reference, behaviour, advantage, sequences, config, kept)
    assert stats.tokens == batch.mask.sum()
    shares = aggregation_weights(
        sequences,
        how=config.loss_aggregation,
        token_count=int(batch.mask.sum()),
        sequence_count=len(batch.spans()),
    )
    return (losses * shares).sum(), theta


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@given(seed=SEEDS)
def test_the_loss_is_the_formula(settings: dict[str, Any], seed: int) -> None:
    batch, config = random_batch(seed), config_of(settings)
    loss, _ = loss_of(batch, config)
    assert float(loss.detach()) == pytest.approx(formula(batch, config), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@given(seed=SEEDS)
def test_the_gradient_is_a_finite_difference(settings: dict[str, Any], seed: int) -> None:
    """Along a random direction, which no wrong entry of the gradient is orthogonal to. But for CISPO, whose weight has
    no gradient: there it is the clipped weight times A. And GSPO's is that of its sequences' form where all tokens of
    a sequence weigh the same."""
    if settings == {"objective": WIDE_GSPO}:
        settings = {"objective": WIDE_GSPO, "importance": {"kind": "sequence_mask", "max": 2.0}}
    batch, config = random_batch(seed), config_of(settings)
    loss, theta = loss_of(batch, config)
    loss.backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    if config.objective.kind == "cispo":
        r, w = np.exp(batch.theta - batch.proximal), np.exp(batch.proximal - batch.behaviour)
        share = batch.mask / (max(1, len(batch.spans())) * getattr(config.loss_aggregation, "length", 1))
        clipped = [clip(x, config) for x in r]
        expected = -share * np.minimum(w, getattr(config.importance, "max", np.inf)) * clipped * batch.advantage
        assert theta.grad.numpy() == pytest.approx(expected, abs=1e-5)
        return
    direction, step = np.random.default_rng(seed).normal(size=len(batch.theta)), 1e-6
    below, middle, above = (
        formula(Batch(**{**vars(batch), "theta": batch.theta + shift * direction}), config)
        for shift in (-step, 0, step)
    )
    left, right = (middle - below) / step, (above - middle) / step
    if abs(left - right) < 1e-3:  # else a kink of the clip lies there, or M2PO drops a token
        assert float(theta.grad.numpy() @ direction) == pytest.approx((left + right) / 2, abs=1e-4)


@pytest.mark.slow
@given(seed=SEEDS)
def test_on_policy_every_objective_has_the_gradient_of_reinforce(seed: int) -> None:
    batch = random_batch(seed)
    batch.theta = batch.behaviour = batch.proximal
    gradients = []
    for name in ("ppo", "gspo", "cispo", "sapo", "m2po", "reinforce"):
        loss, theta = loss_of(batch, config_of({"objective": name, "importance": "none"}))
        loss.backward()  # type: ignore[no-untyped-call]
        assert theta.grad is not None
        gradients.append(theta.grad)
    for gradient in gradients:
        assert torch.allclose(gradient, gradients[-1], atol=1e-6)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30), st.floats(0.001, 1))
def test_m2po_keeps_as_many_tokens_as_it_may(log_ratios: list[float], threshold: float) -> None:
    log_ratio = torch.tensor(log_ratios, dtype=torch.float64)
    moments = log_ratio.square()
    kept = moments <= m2_cutoff(log_ratio, threshold)
    if kept.any():
        assert float(moments[kept].mean()) <= threshold + 1e-9
    if not kept.all():
        more = moments[moments <= moments[~kept].min()]
        assert float(more.mean()) > threshold - 1e-9


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("far", [89.0, 1e3, 1e30])
def test_no_ratio_however_far_makes_a_loss_or_a_gradient_that_is_not_finite(
    settings: dict[str, Any], far: float
) -> None:
    """Every combination of a θ and a b that are far above or below p, with a positive, a negative and no advantage."""
    config = config_of(settings)
    shifts = torch.tensor([-far, 0.0, far])
    grid = torch.cartesian_prod(shifts, shifts, torch.tensor([-1.0, 0.0, 1.0]))
    logprobs = grid[:, 0].clone().requires_grad_()
    sequences = SequenceMap(torch.arange(len(grid)), len(grid), torch.ones(len(grid), dtype=torch.bool))
    losses, stats = policy_loss(logprobs, torch.zeros(len(grid)), -grid[:, 1], grid[:, 2], sequences, config)
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    assert bool(losses.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert all(np.isfinite(value) for value in vars(stats).values())
    assert bool((losses[grid[:, 2] == 0] == 0).all())
    assert bool((gradient[grid[:, 2] == 0] == 0).all())


@pytest.mark.parametrize("mode", ["mask", "sequence_mask", "geometric_mask"])
def test_a_dropped_token_may_hold_anything(mode: str) -> None:
    config = TrainerConfig(importance={"kind": mode, "max": 2.0}, objective="cispo")
    logprobs = torch.tensor([-torch.inf, -1.0], requires_grad=True)
    sequences = SequenceMap(torch.tensor([0, 1]), 2, torch.tensor([True, True]))
    losses, _ = policy_loss(logprobs, torch.zeros(2), torch.tensor([-50.0, 0.0]), torch.ones(2), sequences, config)
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    assert losses.tolist()[0] == 0
    assert gradient.tolist()[0] == 0
    assert bool(losses.isfinite().all())
