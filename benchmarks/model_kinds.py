"""Which causal LMs of transformers the trainer scores right in a prefix tree, and what it says of the others.

    python benchmarks/model_kinds.py [KIND ...] [--gradients]

Builds every kind of `AutoModelForCausalLM` from a tiny configuration with random weights, as varied as the kind allows: each of its
layer types, a sliding window shorter than the sequences. The truth is transformers' own eager forward pass over each sequence alone,
made before anything of agentrl touches the model. Exits 1 when a kind is accepted and wrong, or when one of RIGHT is refused.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentrl.errors import ConfigError
from agentrl.trainer.model.packed_model import PackedModel
from agentrl.trainer.packing import TrainingSequence, in_tree_order, prefix_tree

MOST_PARAMETERS = 20_000_000
TOLERANCE = 1e-4
VOCABULARY = 480
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_embed", "embed_dim", "dim_model", "embedding_size"), 64),
    **dict.fromkeys(("input_embedding_size", "lru_width", "out_hidden_size", "attention_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "depth"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "attention_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "dim_ff", "dff", "d_ff"), 96
    ),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_d_state", "mamba_head_dim", "ssm_state_size", "state_size"), 16),
    **dict.fromkeys(("sliding_window", "window_size"), 8),
    **dict.fromkeys(("is_decoder", "use_sliding_window"), True),
    "hidden_size_per_layer_input": 16,
    "qk_head_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What a configuration's fields are set to, where it has them."""
OWN: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse", "full_attention"] * 2},
    "phi3": {"original_max_position_embeddings": 128},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of one kind."""
RIGHT = frozenset(
    """
    afmoe apertus arcee aria_text axk1 beam bert-generation biogpt bitnet cohere cohere2 cohere2_moe ctrl cwm
    deepseek_v2 deepseek_v3 diffllama dots1 emu3 ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo fuyu gemma gemma2
    gemma3 gemma3_text gemma4 gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2
    gpt-sw3 gpt2 gpt_bigcode gpt_neox granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3
    hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna llama mellum minicpm3 minimax_m2 ministral
    ministral3 mistral mixtral moshi moss_transcribe_diarize nanochat olmo olmo2 olmo3 olmoe opt persimmon phi phi3
    phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open starcoder2 vaultgemma whisper
    youtu
    """.split()  # noqa: SIM905
)
"""The kinds that are accepted: none of them may be lost."""


@dataclass(frozen=True)
class Verdict:
    """What came of one kind."""

    refusal: str | None
    """Why it is refused; None where it is accepted."""
    error: float | None
    """Of the accepted: max |Δlogprob| in a tree of about 70 tokens, in nats; of the refused nothing is asked."""
    gradient_error: float | None = None
    """max |Δgradient| of a random weighting of the logprobs, as a share of the largest gradient."""


def tiny_model(kind: str, **options: Any) -> Any:
    """Return a small random model of a kind. `options` are fields of its configuration."""
    config_class = CONFIG_MAPPING[kind]
    config = config_class(**{**_sizes(config_class().to_dict()), **OWN.get(kind, {}), **options})
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise MemoryError(f"{size / 1e6:.0f} M parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    # The usual small initial weights make all logits alike, and hide what is wrong.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(noise if "emb" in name else noise * 1.5 / parameter.shape[-1] ** 0.5)
    return model


def _sizes(default: dict[str, Any]) -> dict[str, Any]:
    small = {name: SIZES[name] for name in default if name in SIZES}
    if "kv_lora_rank" in default:
        small["num_key_value_heads"] = small["num_attention_heads"]
    layers = small.get("num_hidden_layers", 4)
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(kinds := default.get(name), list) and kinds:
            distinct = list(dict.fromkeys(kinds))
            small[name] = [distinct[i % len(distinct)] for i in range(layers - 1)] + [kinds[-1]]
    for name, value in default.items():
        if name.endswith("_config") and isinstance(value, dict):
            small[name] = _sizes(value)
    return small


def sequences() -> list[TrainingSequence]:
    """Return two prefix trees of three sequences each, and one that shares nothing; every second token is trained on."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(9, VOCABULARY - 10) for _ in range(count)]

    made = []
    for _ in range(2):
        root, branch = ids(9), ids(5)
        made += [root + branch + ids(6), root + branch + ids(4), root + ids(12)]
    made.append(ids(15))
    return in_tree_order([_sequence(one, rng) for one in made])


def _sequence(ids: list[int], rng: random.Random) -> TrainingSequence:
    zeros, whole = torch.zeros(len(ids)), torch.zeros(len(ids), dtype=torch.long)
    return TrainingSequence(
        token_ids=torch.tensor(ids),
        loss_mask=torch.arange(len(ids)) % 2 == 1,
        behaviour_logprobs=zeros,
        versions=whole,
        temperatures=torch.tensor([rng.choice([0.7, 1.0, 1.3]) for _ in ids]),
        advantages=zeros,
        rewards=zeros,
        turn_index=whole,
    )


def truth(model: Any, made: list[TrainingSequence]) -> Tensor:
    """Return [M] logprobs of the trained tokens by the model's own forward pass, a sequence at a time."""
    found = []
    for one in made:
        logits = model(input_ids=one.token_ids.unsqueeze(0), use_cache=False).logits[0]
        trained = one.loss_mask.nonzero().flatten()
        logprobs = torch.log_softmax(logits[trained - 1].float() / one.temperatures[trained, None], -1)
        found.append(logprobs.gather(-1, one.token_ids[trained, None]).squeeze(-1))
    return torch.cat(found)


def judge(model: Any, *, gradients: bool = False) -> Verdict:
    """Return what the trainer says of a model, and whether it is so."""
    made = sequences()
    expected = truth(model, made)
    weights = torch.linspace(-1, 1, len(expected))
    theirs = _gradient(model, expected, weights) if gradients else None
    try:
        scored = PackedModel(model)
        scored.check()
    except ConfigError as error:
        return Verdict(str(error), None)
    own = scored(prefix_tree(made)).logprobs
    worst = float((own - expected).detach().abs().max())
    if theirs is None:
        return Verdict(None, worst)
    difference = (_gradient(model, own, weights) - theirs).abs().max() / theirs.abs().max()
    return Verdict(None, worst, float(difference))


def _gradient(model: Any, logprobs: Tensor, weights: Tensor) -> Tensor:
    model.zero_grad()
    (logprobs * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    """Print a line a kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    parser.add_argument("--gradients", action="store_true", help="compare gradients too")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    accepted, wrong = [], []
    for kind in options.kinds:
        try:
            model = tiny_model(kind)
            with torch.no_grad():
                truth(model, sequences())
        except Exception as error:  # a kind that needs another package, or a configuration that is not made up here
            print(f"{kind:24} not tried: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        verdict = judge(model, gradients=options.gradients)
        if verdict.error is None:
            reason = str(verdict.refusal).partition("cannot be trained: ")[2].partition(". docs/")[0]
            print(f"{kind:24} refused: {reason}", flush=True)
            continue
        accepted.append(kind)
        right = verdict.error < TOLERANCE and (verdict.gradient_error or 0.0) < TOLERANCE
        if not right:
            wrong.append(kind)
        gradient = "" if verdict.gradient_error is None else f", gradient to {verdict.gradient_error:.0e}"
        print(f"{kind:24} {'right' if right else 'WRONG'} to {verdict.error:.0e}{gradient}", flush=True)
    lost = sorted((RIGHT & set(options.kinds)) - set(accepted))
    print(f"{len(accepted)} accepted: {', '.join(accepted)}")
    if wrong or lost:
        sys.exit(f"accepted and wrong: {', '.join(wrong) or 'none'}; lost: {', '.join(lost) or 'none'}")


if __name__ == "__main__":
    main()
