"""Which kinds of model are accepted, against transformers' own eager forward pass over each sequence alone.

`python benchmarks/model_kinds.py` does so for every kind there is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.trainer.model.packed_model import PackedModel
from agentrl.trainer.model.tree_attention import tree_attention
from benchmarks.model_kinds import RIGHT, TOLERANCE, judge, sequences, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own code for rare kinds


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("afmoe", marks=pytest.mark.soak),  # reshapes the attention's output with view(), as jetmoe does
        pytest.param("cohere2", marks=pytest.mark.soak),  # windows in some layers, scaled logits
        "deepseek_v3",  # keys and values of different widths, experts
        "gemma2",  # soft caps
        "gemma3_text",  # an embedding of positions for each kind of layer
        pytest.param("gpt2", marks=pytest.mark.soak),  # learned positions
        pytest.param("jetmoe", marks=pytest.mark.soak),
        pytest.param("opt", marks=pytest.mark.soak),
        "phimoe",  # a window that only its mask has
        pytest.param("qwen3_moe", marks=pytest.mark.soak),
    ],
)
def test_a_kind_that_is_right_is_accepted(kind: str) -> None:
    assert kind in RIGHT
    verdict = judge(tiny_model(kind), gradients=True)
    assert verdict.refusal is None
    assert verdict.error is not None
    assert verdict.gradient_error is not None
    assert max(verdict.error, verdict.gradient_error) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "differ from transformers' own"),  # positions by index
        pytest.param("gpt_neo", "differ", marks=pytest.mark.soak),  # an attention of its own
        pytest.param("jamba", "differ", marks=pytest.mark.soak),  # state that flows along the row
        pytest.param("lfm2", "differ", marks=pytest.mark.soak),
        pytest.param("mamba", "differ", marks=pytest.mark.soak),
        pytest.param("qwen3_5_text", "differ", marks=pytest.mark.soak),
        ("qwen3_next", "differ"),
        ("nemotron", "layers do not pass on"),
        pytest.param("stablelm", "layers do not pass on", marks=pytest.mark.soak),
        ("gpt_oss", "its attention has s_aux"),
        pytest.param(
            "minimax_m3_vl_text", "its attention has block_indices", marks=pytest.mark.soak
        ),  # right as long as all blocks of keys are chosen
        ("llama4_text", "attention_chunk_size = 8192"),
        pytest.param("falcon", "TypeError", marks=pytest.mark.soak),
        ("mpt", "AttributeError"),
    ],
)
def test_a_kind_that_a_tree_scores_wrong_is_refused_by_name(kind: str, reason: str) -> None:
    assert kind not in RIGHT
    model = tiny_model(kind)
    with pytest.raises(ConfigError, match=f"model.path: {type(model).__name__} cannot be trained: .*{reason}"):
        PackedModel(model).check()


@pytest.mark.parametrize(
    ("rope", "accepted"),
    [
        ({"rope_type": "default"}, True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, True),
        ({"rope_type": "dynamic", "factor": 4.0}, False),
        ({"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8}, False),
    ],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else "",
)
def test_positions_whose_embedding_depends_on_the_longest_sequence_are_refused(
    rope: dict[str, Any], accepted: bool
) -> None:
    options = {} if rope["rope_type"] != "longrope" else {"original_max_position_embeddings": 32}
    model = tiny_model("phi3" if options else "llama", rope_parameters={"rope_theta": 10_000.0, **rope}, **options)
    if accepted:
        assert judge(model).refusal is None
    else:
        with pytest.raises(ConfigError, match=f"rope_type = '{rope['rope_type']}'"):
            PackedModel(model)


def test_embeddings_of_positions_for_each_kind_of_layer_are_looked_at() -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    }
    with pytest.raises(ConfigError, match="rope_type = 'dynamic'"):
        PackedModel(tiny_model("gemma3_text", rope_parameters=rope))


def test_a_model_whose_mask_is_wrong_only_between_branches_is_refused() -> None:
    """What a line does not show: the same model, whose every token sees the whole row before it."""
    model = tiny_model("llama")
    plain = model.model.forward
    model.model.forward = lambda *args, tree=None, **kwargs: plain(*args, tree=tree and _line_of(tree), **kwargs)
    with pytest.raises(ConfigError, match="in a prefix tree"):
        PackedModel(model).check()


def _line_of(tree: Any) -> Any:
    size = len(tree)
    return replace(tree, subtree_end=torch.full_like(tree.subtree_end, size), position_ids=torch.arange(size))


def test_attention_without_a_tree_is_an_error() -> None:
    states = torch.randn(1, 2, 5, 8)
    with pytest.raises(ConfigError, match="do not pass on"):
        tree_attention(torch.nn.Module(), states, states, states, None)


def test_the_sequences_that_kinds_are_judged_by_branch() -> None:
    made = sequences()
    assert len(made) == 7
    assert max(map(len, made)) > 2 * 8, "longer than the windows"
