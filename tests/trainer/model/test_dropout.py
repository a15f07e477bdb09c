"""Dropout acts nowhere unless it is asked for, and then in the gradient pass alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.errors import ConfigError
from agentrl.trainer.model.critic import Critic
from agentrl.trainer.model.packed_model import load_model
from agentrl.trainer.model.ranks import join_ranks
from agentrl.trainer.packing import pack_sequences
from agentrl.trainer.policy import Policy
from agentrl.trainer.sft import LIKELIHOOD, nll
from benchmarks.model_kinds import tiny_model
from tests.trainer.test_policy import sequences

KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"attention_dropout": 0.3},
    "gemma2": {"attention_dropout": 0.3},  # its soft caps are computed apart
    "gpt2": {"attn_pdrop": 0.0, "resid_pdrop": 0.3, "embd_pdrop": 0.0},
    "opt": {"dropout": 0.3, "attention_dropout": 0.0, "layerdrop": 0.0},
    "phimoe": {"router_jitter_noise": 0.3, "input_jitter_noise": 0.3},  # noise of the same kind
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A model whose configuration asks for dropout of 0.3 in one of its forms."""
    kind = getattr(request, "param", "gpt2")
    if not (folder / kind).exists():
        tiny_model(kind, **KINDS[kind]).save_pretrained(folder / kind)
    return folder / kind


GATE = ("gemma2", "gpt2")
every_kind = pytest.mark.parametrize(
    "model", [kind if kind in GATE else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS], indirect=True
)
two_kinds = pytest.mark.parametrize("model", ["gpt2", pytest.param("opt", marks=pytest.mark.soak)], indirect=True)


def policy_of(model: Path, **settings: Any) -> Policy:
    return Policy(model, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0, "max_grad_norm": 1e9}, **settings))


def weights(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


@every_kind
def test_by_default_all_passes_are_one_function_and_theta_is_p_at_first(model: Path) -> None:
    policy = policy_of(model)
    batch = sequences(policy)
    (packed,) = pack_sequences(batch, 1000)
    with torch.no_grad():
        assert torch.equal(policy.logprobs(packed), policy.logprobs(packed))
    result = policy.step(batch)
    assert result.stats.kl_step == 0, "θ = p exactly"
    assert result.grad_norm > 0


@every_kind
def test_with_the_setting_only_the_gradient_pass_differs(model: Path) -> None:
    settings: dict[str, Any] = {"lora": {"rank": 2}} if model.name == "qwen3" else {}
    plain, dropped, again = (policy_of(model, dropout=on, **settings) for on in (False, True, True))
    batch = sequences(plain)
    results = [policy.step(batch) for policy in (plain, dropped, again)]
    assert results[0].stats.kl_step == 0
    assert results[1].stats.kl_step != 0, "θ is dropped from"
    for result in results:
        assert float(result.log_importance_weights.abs().max()) < 1e-5, "p is not"
    assert not torch.equal(weights(plain), weights(dropped))
    assert torch.equal(weights(dropped), weights(again)), "what is dropped follows from the step"
    (packed,) = pack_sequences(batch, 1000)
    with torch.no_grad():
        assert torch.equal(dropped.logprobs(packed), again.logprobs(packed))
        assert torch.equal(dropped.logprobs(packed), dropped.logprobs(packed)), "and the mode is left"


@two_kinds
def test_recomputed_activations_drop_what_the_forward_pass_dropped(model: Path) -> None:
    plain, recomputed = (policy_of(model, dropout=True, recompute_activations=on) for on in (False, True))
    batch = sequences(plain)
    for policy in (plain, recomputed):
        policy.step(batch)
    assert torch.allclose(weights(plain), weights(recomputed), atol=1e-5)


def test_the_reference_and_the_mismatch_see_no_dropout(model: Path, tmp_path: Path) -> None:
    policy = policy_of(model, dropout=True, kl={"kind": "loss", "coef": 0.1})
    batch = sequences(policy)
    compared = policy.mismatch(batch, {0: policy.publish(tmp_path)})
    assert compared is not None
    assert compared.max_abs < 1e-5
    assert policy.reference is not None
    (packed,) = pack_sequences(batch, 1000)
    with torch.no_grad():
        assert torch.equal(policy.reference(packed).logprobs, policy.logprobs(packed))


@pytest.mark.parametrize("dropout", [False, True])
def test_a_critics_values_see_no_dropout(model: Path, dropout: bool) -> None:
    critics = [
        Critic(model, TrainerConfig(advantage={"kind": "gae", "critic_lr": 1e-2}, dropout=on))
        for on in (False, dropout)
    ]
    (packed,) = pack_sequences(sequences(policy_of(model)), 1000)
    for critic in critics:  # away from the head of zeros that it starts with
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    one, other = (critic.advantages_and_returns(packed) for critic in critics)
    assert torch.equal(one.old_values, other.old_values)
    losses = [critic.update([packed], [critic.advantages_and_returns(packed)]) for critic in critics]
    assert (losses[0] != losses[1]) is dropout
    assert torch.equal(critics[1](packed, packed.source), critics[1](packed, packed.source))


def test_what_is_spread_drops_the_same(model: Path) -> None:
    ranks = join_ranks(60, offload=True)
    try:
        one, spread = (
            Policy(
                model,
                TrainerConfig(
                    optimizer={"lr": 1e-3, "warmup_steps": 0}, dropout=True, recompute_activations=True, offload=on
                ),
                ranks,
            )
            for on in (False, True)
        )
        batch = sequences(one)
        norms = [policy.step(batch).grad_norm for policy in (one, spread)]
    finally:
        dist.destroy_process_group()
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.parametrize("dropout", [False, True])
def test_supervised_learning_drops_and_its_held_out_likelihood_does_not(model: Path, dropout: bool) -> None:
    policy = policy_of(model, dropout=dropout, **LIKELIHOOD)
    batch = sequences(policy)
    expected = nll(policy, batch)
    assert nll(policy, batch) == expected
    assert (policy.step(batch).loss != pytest.approx(expected, rel=1e-5)) is dropout


@two_kinds
def test_activations_are_recomputed_layer_by_layer(model: Path) -> None:
    policy = policy_of(model, recompute_activations=True)
    layers = policy.packed_model.layers
    assert len(layers) == policy.model.config.get_text_config().num_hidden_layers
    calls: list[torch.nn.Module] = []
    for layer in layers:
        inner = next(module for module in layer.modules() if not list(module.children()))
        inner.register_forward_pre_hook(lambda module, args: calls.append(module))
    batch = sequences(policy)
    calls.clear()
    policy.step(batch)
    assert len(calls) == 2 * len(layers), "twice for the gradient, of which the first gives log p too"


def test_an_interpolated_log_p_cannot_be_had_with_dropout() -> None:
    with pytest.raises(ValueError, match="proximal"):
        TrainerConfig(dropout=True, objective={"proximal": "interpolate"})


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path: .* has no causal LM"):
        load_model(tmp_path)
