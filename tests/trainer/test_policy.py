"""The policy: steps learn, checkpoints continue exactly, published weights are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.packing import TrainingSequence, pack_sequences
from agentrl.trainer.policy import Policy


def sequences(policy: Policy, count: int = 6, advantage: float = 1.0) -> list[TrainingSequence]:
    """On-policy sequences: their behaviour logprobs are the policy's own."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        ids = torch.randint(9, 470, (20,), generator=generator)
        mask = torch.arange(20) >= 10
        made.append(
            TrainingSequence(
                token_ids=ids,
                loss_mask=mask,
                behaviour_logprobs=torch.zeros(20),
                versions=torch.where(mask, policy.version, -1),
                temperatures=torch.ones(20),
                advantages=torch.full((20,), advantage),
                rewards=torch.where(torch.arange(20) == 19, advantage, 0.0),
                turn_index=torch.zeros(20, dtype=torch.long),
            )
        )
    with torch.no_grad():
        scored = [policy.logprobs(pack_sequences([s], 100)[0]) for s in made]
    return [
        TrainingSequence(**{**vars(s), "behaviour_logprobs": torch.cat([torch.zeros(10), logprobs])})
        for s, logprobs in zip(made, scored, strict=True)
    ]


def score(policy: Policy, batch: list[TrainingSequence]) -> float:
    with torch.no_grad():
        (packed,) = pack_sequences(batch, 10_000)
        return float(policy.logprobs(packed).sum())


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"objective": "gspo", "loss_aggregation": "sequence"},
        {"objective": "cispo"},
        {"objective": "sapo"},
        {"objective": "m2po", "importance": "none"},
        {"objective": "reinforce", "loss_aggregation": {"kind": "constant", "length": 100}},
        {"objective": {"proximal": "behaviour"}},
        {"objective": {"proximal": "interpolate"}, "kl": {"kind": "loss", "coef": 0.01}, "entropy_coef": 1e-3},
        {"kl": {"kind": "reward", "coef": 0.01}, "recompute_activations": True},
    ],
    ids=lambda settings: settings.get("objective") or settings.get("kl", "ppo"),
)
def test_a_step_moves_logprobs_the_way_the_advantage_points(settings: dict[str, Any], advantage: float) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}, minibatches=2, **settings))
    batch = sequences(policy, advantage=advantage)
    before = score(policy, batch)
    result = policy.step(batch)
    assert (score(policy, batch) - before) * advantage > 0
    assert policy.version == 1
    assert result.stats.tokens == 60
    assert result.stats.importance_weight / result.stats.tokens == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("loss_aggregation", ["token", "sequence", "constant"])
def test_sequences_that_teach_nothing_count_in_the_mean_and_are_not_computed(loss_aggregation: str) -> None:
    """AReaL's N is all tokens of the minibatch; a third of them with A = 0 leaves two thirds of the gradient."""
    settings: dict[str, Any] = {
        "loss_aggregation": {"kind": loss_aggregation, **({"length": 50} if loss_aggregation == "constant" else {})}
    }

    def step(others: int, **more: Any) -> Any:
        policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9, "max_grad_norm": 1e9}, **settings, **more))
        batch = sequences(policy)
        silent = [replace(s, advantages=torch.zeros(20)) for s in batch[:others]]
        return policy.step([*batch[others:], *silent])

    assert step(2).computed_tokens < step(0).computed_tokens
    alone = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9, "max_grad_norm": 1e9}, **settings))
    moving = alone.step(sequences(alone)[2:])
    scale = 4 / 6
    assert step(2).grad_norm == pytest.approx(scale * moving.grad_norm, rel=1e-4)
    # A divergence that weighs nothing makes every sequence computed, and changes no gradient.
    assert step(2, kl={"kind": "loss", "coef": 1e-12}).grad_norm == pytest.approx(step(2).grad_norm, rel=1e-4)


def test_a_batch_that_teaches_nothing_is_an_optimizer_step_with_a_gradient_of_zero() -> None:
    policy, computed = (Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0})) for _ in range(2))
    batch = sequences(policy)
    silent = [replace(s, advantages=torch.zeros(20)) for s in batch]
    computed.config = TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}, entropy_coef=1e-30)
    for one in (policy, computed):
        one.step(batch)
        one.step(silent)
    assert policy.step(silent).grad_norm == 0
    computed.step(silent)
    for own, other in zip(policy.model.parameters(), computed.model.parameters(), strict=True):
        assert torch.allclose(own, other, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 1),  # the gradient pass gives log p too
        (
            {"minibatches": 3},
            1 + 2 + 2,
        ),  # the second and third minibatch need log p from before the first optimizer step
        ({"minibatches": 3, "objective": {"proximal": "interpolate"}}, 3),
        ({"minibatches": 3, "objective": {"proximal": "behaviour"}}, 3),
        ({"kl": {"kind": "reward", "coef": 0.01}}, 2),  # what is taken off the advantages is needed before
        ({"objective": "m2po", "importance": "none", "kl": {"kind": "reward", "coef": 0.01}}, 2),
    ],
    ids=str,
)
def test_no_logprob_is_computed_twice(settings: dict[str, Any], passes: int) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}, **settings))
    batch = sequences(policy)
    calls: list[object] = []
    policy.packed_model.register_forward_hook(lambda *_: calls.append(None))
    policy.step(batch)
    assert len(calls) == passes


def test_m2po_drops_tokens_of_the_whole_minibatch_however_it_is_packed() -> None:
    """Sequences that drifted by 0.1, but one by 0.5: alone in its pack, its mean would be above τ and it would lose all."""
    clipped, moved = [], []
    for tokens_per_pack in (20, 10_000):
        settings = {
            "objective": "m2po",
            "importance": "none",
            "tokens_per_pack": tokens_per_pack,
        }
        policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}, **settings))
        drifts = [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]
        batch = [
            TrainingSequence(**{**vars(s), "behaviour_logprobs": s.behaviour_logprobs - drift})
            for s, drift in zip(sequences(policy), drifts, strict=True)
        ]
        stats = policy.step(batch).stats
        clipped.append(stats.clipped)
        moved.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    # 50 tokens of 0.01; (0.5 + 0.25·n) / (50 + n) ≤ 0.04 for n ≤ 7; the ten of the drifted sequence are all but equal.
    assert clipped[0] == clipped[1]
    assert 3 <= clipped[0] <= 10
    assert torch.allclose(moved[0], moved[1], atol=1e-6)


@pytest.mark.parametrize(("proximal", "clipped"), [("behaviour", 60), ("recompute", 0)])
def test_ppo_that_is_not_decoupled_clips_what_has_become_likelier_since_it_was_sampled(
    proximal: str, clipped: int
) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}, objective={"proximal": proximal}))
    stale = [replace(s, behaviour_logprobs=s.behaviour_logprobs - 0.5) for s in sequences(policy)]
    before = score(policy, stale)
    assert policy.step(stale).stats.clipped == clipped
    assert (score(policy, stale) > before) == (clipped == 0)


def test_the_learning_rate_warms_up_over_optimizer_steps() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 4}, minibatches=2))
    batch = sequences(policy)
    assert [policy.step(batch).lr for _ in range(3)] == pytest.approx([5e-4, 1e-3, 1e-3])


def test_a_checkpoint_continues_exactly(tmp_path: Path) -> None:
    config = TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0})
    straight = Policy(NANO, config)
    batch = sequences(straight)
    straight.step(batch)
    straight.save(tmp_path / "step-1", NANO)
    straight.step(batch)

    resumed = Policy(NANO, config)
    resumed.load(tmp_path / "step-1")
    assert resumed.version == 1
    resumed.step(batch)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_is_a_hugging_face_model(tmp_path: Path) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}))
    policy.step(sequences(policy))
    policy.save(tmp_path / "step-1", NANO)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1", dtype=torch.float32)
    assert torch.equal(model.model.norm.weight, policy.model.model.norm.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "step-1").encode("12") == AutoTokenizer.from_pretrained(
        NANO
    ).encode("12")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1"]


def test_mismatch_is_measured_under_the_weights_that_sampled(tmp_path: Path) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}))
    old = sequences(policy)
    published = {0: policy.publish(tmp_path)}
    policy.step(old)
    published[1] = policy.publish(tmp_path)
    assert sorted(load_file(published[0] / "model.safetensors")) == sorted(
        name for name, _ in policy.model.named_parameters()
    )
    exact = policy.mismatch(old, published)
    assert exact is not None
    assert exact.tokens == 60
    assert exact.max_abs < 1e-5
    assert policy.mismatch(old, {1: published[1]}) is None


def test_a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run_when_it_repeats() -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}))
    good = sequences(policy)
    bad = [TrainingSequence(**{**vars(s), "advantages": torch.full((20,), torch.inf)}) for s in good]
    before = [parameter.clone() for parameter in policy.model.parameters()]
    for _ in range(2):
        assert policy.step(bad).skipped == 1
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))
    assert policy.step(good).skipped == 0
    for _ in range(2):
        policy.step(bad)
    with pytest.raises(FloatingPointError, match="not finite in 3 optimizer steps in a row"):
        policy.step(bad)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in policy.model.parameters())


def test_recomputed_activations_change_no_gradient_and_mixed_precision_little() -> None:
    plain, recomputed, mixed = (
        Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4, "warmup_steps": 0}, **settings))
        for settings in ({}, {"recompute_activations": True}, {"precision": "mixed"})
    )
    batch = sequences(plain)
    norms = [policy.step(batch).grad_norm for policy in (plain, recomputed, mixed)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] == pytest.approx(norms[0], rel=0.05)
    assert norms[2] != norms[0]
    assert all(parameter.dtype == torch.float32 for parameter in mixed.model.parameters())
