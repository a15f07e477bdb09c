"""TokenLogprobs of a pack: of every kind of model, in chunks as at once, and with attention as a GPU computes it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers

from agentrl.errors import ConfigError
from agentrl.trainer.model import packed_model as packed_model_module
from agentrl.trainer.model.packed_model import PackedModel, logprobs_and_entropies
from agentrl.trainer.model.tree_attention import tree_attention
from agentrl.trainer.packing import pack_sequences, prefix_tree
from tests.trainer.random_trees import random_tree

SMALL: dict[str, Any] = {
    "vocab_size": 480,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 8,
    "pad_token_id": 0,
}


def small_model(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **options})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("Llama", {}, marks=pytest.mark.soak),
        pytest.param("Qwen2", {}, marks=pytest.mark.soak),
        ("Qwen3", {"tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": 6}),
        ("Gemma2", {"sliding_window": 6, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.0}),
        pytest.param("Cohere", {"logit_scale": 0.3}, marks=pytest.mark.soak),
        pytest.param("Granite", {"logits_scaling": 3.0}, marks=pytest.mark.soak),
        pytest.param("Phi", {"num_key_value_heads": 4}, marks=pytest.mark.soak),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pack_has_the_logprobs_that_transformers_gives_its_paths(kind: str, options: dict[str, Any]) -> None:
    model = small_model(kind, **options)
    sequences = random_tree(random.Random(9), depth=3)
    expected = []
    for s in sorted(sequences, key=lambda s: s.token_ids.tolist()):
        model.config._attn_implementation = "eager"
        with torch.no_grad():
            logits = model(input_ids=s.token_ids.unsqueeze(0), use_cache=False).logits[0].double()
        trained = s.loss_mask.nonzero().flatten()
        tempered = torch.log_softmax(logits[trained - 1] / s.temperatures[trained, None], -1)
        expected.append(tempered.gather(-1, s.token_ids[trained, None]).squeeze(-1))
        entropies = -(tempered.exp() * tempered).sum(-1)
        expected[-1] = torch.stack([expected[-1], entropies])
    packed_model = PackedModel(model)
    packed_model.check()
    with torch.no_grad():
        found = packed_model(prefix_tree(sorted(sequences, key=lambda s: s.token_ids.tolist())))
    assert torch.allclose(found.logprobs.double(), torch.cat(expected, 1)[0], atol=2e-5)
    assert torch.allclose(found.entropies.double(), torch.cat(expected, 1)[1], atol=2e-5)


def test_a_model_whose_logits_the_trainer_does_not_know_is_refused() -> None:
    model = small_model("Qwen3")
    plain = model.forward
    model.forward = lambda *args, **kwargs: _doubled(plain(*args, **kwargs))
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM cannot be trained: its logprobs in a prefix tree differ"):
        PackedModel(model).check()


def _doubled(out: Any) -> Any:
    out.logits = 2 * out.logits
    return out


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunks_have_the_logprobs_and_gradients_of_all_logits_at_once(
    monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool
) -> None:
    packed_model = PackedModel(small_model("Qwen3"))
    (batch,) = pack_sequences(random_tree(random.Random(2), depth=3), 10_000)
    results = []
    for rows in (1000, 7):
        monkeypatch.setattr(packed_model_module, "LOGITS_AT_ONCE", rows * 480)
        packed_model.zero_grad()
        found = packed_model(batch, entropy_gradient=entropy_gradient)
        weights = torch.linspace(-1, 1, batch.trained_tokens)
        loss = (found.logprobs * weights).sum()
        if entropy_gradient:
            loss = loss + (found.entropies * weights.flip(0)).sum()
        loss.backward()
        results.append([found.logprobs, found.entropies, *(p.grad.clone() for p in packed_model.parameters())])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_entropy_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    temperatures = torch.tensor([0.7, 1.0, 1.4], dtype=torch.float64)

    def entropies(values: torch.Tensor) -> torch.Tensor:
        return logprobs_and_entropies(values, torch.tensor([0, 1, 2]), temperatures, entropy_gradient=True)[1]

    assert torch.autograd.gradcheck(entropies, (logits,))
    _, entropy = logprobs_and_entropies(logits, torch.tensor([0, 1, 2]), temperatures)
    assert not entropy.requires_grad


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 3000.0], ids=["uniform", "flat", "peaked", "one-hot"])
@pytest.mark.parametrize("masked", [0, 400], ids=["", "masked"])
def test_entropy_is_never_negative_and_that_of_float64(scale: float, masked: int) -> None:
    generator = torch.Generator().manual_seed(1)
    exact = 100 + scale * torch.randn(64, 500, dtype=torch.float64, generator=generator)
    exact[:, 500 - masked :] = -torch.inf
    temperatures = torch.tensor([0.5, 1.0, 2.0, 4.0]).repeat(16)
    weights = torch.rand(64, generator=generator)

    def oracle(logits: torch.Tensor) -> torch.Tensor:
        possible = logits[:, : 500 - masked] / temperatures.double()[:, None]
        shifted = possible - possible.amax(-1, keepdim=True)
        total = shifted.exp().sum(-1, keepdim=True)
        return (shifted.exp() / total * (total.log() - shifted)).sum(-1)

    logits = exact.float().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    _, entropy = logprobs_and_entropies(logits, torch.zeros(64, dtype=torch.long), temperatures, entropy_gradient=True)
    expected = oracle(exact)
    assert bool((entropy >= 0).all())
    assert torch.allclose(entropy.double(), expected, atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad((entropy * weights).sum(), logits)
    (true_gradient,) = torch.autograd.grad((expected * weights.double()).sum(), exact)
    assert torch.allclose(gradient.double(), true_gradient, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(3))
def test_the_gpus_block_mask_says_what_the_cpus_segments_say(seed: int) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    (batch,) = pack_sequences(random_tree(random.Random(seed), depth=4), 10_000)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, heads, len(batch), 16, generator=generator) for heads in (4, 2, 2))
    with torch.no_grad():
        flexible = flex_attention(query, key, value, block_mask=batch.block_mask, enable_gqa=True)
        blocks, _ = tree_attention(torch.nn.Module(), query, key, value, None, tree=batch)
    assert torch.allclose(flexible.transpose(1, 2), blocks, atol=1e-5)
