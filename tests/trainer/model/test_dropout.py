"""The dropout of a model, and the noise of its routers, act nowhere; and activations are computed again, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.errors import ConfigError
from agentrl.trainer.model.packed_model import load_model
from agentrl.trainer.packing import pack_sequences
from agentrl.trainer.policy import Policy
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


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path: .* has no causal LM"):
        load_model(tmp_path)
