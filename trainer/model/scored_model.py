"""A causal LM that says how likely the trained tokens of a pack are, and never holds the logits of all of them.

The head is applied to a few hidden states at a time: logits of at most LOGITS_AT_ONCE numbers exist at once, in the backward
pass too, where they are computed again. Tokens that are not trained on need no logits at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError
from agentrl.trainer.model.tree_attention import eager_attention, use_tree_attention
from agentrl.trainer.packing import Pack, TrainingSequence, in_tree_order, prefix_tree

LOGITS_AT_ONCE = 2**25
"""Numbers: 128 MiB in float32."""
TOLERANCE = 1e-3
"""How far a logprob of the check may be from transformers' own."""
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")
"""Rotary position embeddings whose angles depend on the longest position that is scored together: in a pack, on the other
sequences."""


def load_model(path: Path) -> Any:
    """Return the causal LM in a folder, in float32 and in evaluation mode. Raises ConfigError for a folder without one."""
    try:
        # Of other forms of weights some are pickles, which run code when they are read.
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        ).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).partition("\nModel type should be one of")[0]  # which goes on with some two hundred
        raise ConfigError(f"model.path: {path} has no causal LM that transformers can load: {reason}") from error


@dataclass(frozen=True)
class Scores:
    """Of the trained tokens of a pack."""

    logprobs: Tensor
    """[M] log softmax(logits / temperature) at each token, float32."""
    entropy: Tensor
    """[M] entropy of the distribution that each was drawn from, in nats."""
    hidden: Tensor
    """[M, width] the hidden states that predict them."""


class ScoredModel(nn.Module):
    """`model` (a transformers causal LM) on packs. Raises ConfigError for a model that it cannot reproduce."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        with refusing(model):
            if reason := unscorable(model.config):
                raise ConfigError(reason)
            use_tree_attention(model)
        config = model.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale = float(getattr(config, "logit_scale", 1.0) or 1.0) / float(
            getattr(config, "logits_scaling", 1.0) or 1.0
        )

    @property
    def layers(self) -> list[nn.Module]:
        """The model's decoder layers."""
        return decoder_layers(self.model.base_model)

    def forward(self, batch: Pack, *, entropy_gradient: bool = False) -> Scores:
        """The scores of the trained tokens, each given those before it in its own trajectory."""
        out = self.model.base_model(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.position_ids.unsqueeze(0),
            use_cache=False,
            tree=batch,
        )
        hidden = out.last_hidden_state[0][batch.source]
        logprobs, entropy = self.scores(hidden, batch.targets, batch.temperatures, entropy_gradient=entropy_gradient)
        return Scores(logprobs, entropy, hidden)

    def scores(
        self, hidden: Tensor, targets: Tensor, temperatures: Tensor, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """([M] logprobs, [M] entropies) from hidden states [M, width]."""
        head = self.model.get_output_embeddings()
        rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
        pieces = []
        for start in range(0, max(1, len(targets)), rows):
            chunk = slice(start, start + rows)
            inputs = (head.weight, head.bias, hidden[chunk], targets[chunk], temperatures[chunk], entropy_gradient)
            alone = len(targets) <= rows or not torch.is_grad_enabled()
            pieces.append(self._chunk(*inputs) if alone else checkpoint(self._chunk, *inputs, use_reentrant=False))
        return torch.cat([logprobs for logprobs, _ in pieces]), torch.cat([entropy for _, entropy in pieces])

    def _chunk(
        self,
        weight: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logits = nn.functional.linear(hidden, weight, bias).float() * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return token_scores(logits, targets, temperatures, entropy_gradient=entropy_gradient)

    @torch.no_grad()
    def check(self) -> None:
        """Raise ConfigError unless a prefix tree gets the logprobs that transformers itself gives its sequences one by one.

        Two of the three sequences share a beginning, and the third shares nothing: what goes wrong in a tree only (state that
        flows along the row, positions counted by index) shows, and so does an unknown form of attention or logits.
        """
        vocabulary, device = self.model.get_output_embeddings().weight.shape[0], self.model.device
        ids = (torch.arange(26) * 7919 + 11) % vocabulary
        shared = ids[:6]
        sequences = in_tree_order(
            [_line(torch.cat([shared, ids[6:14]])), _line(torch.cat([shared, ids[14:19]])), _line(ids[19:])]
        )
        with refusing(self.model):
            own = self(prefix_tree(sequences).to(device)).logprobs
            theirs = []
            with eager_attention(self.model):
                for alone in (s.token_ids.to(device) for s in sequences):
                    logits = self.model(input_ids=alone.unsqueeze(0), use_cache=False).logits[0, :-1].float()
                    logprobs, _ = token_scores(logits, alone[1:], torch.ones_like(alone[1:]))
                    theirs.append(logprobs)
            worst = float((own - torch.cat(theirs)).abs().max())
            if not worst < TOLERANCE:
                raise ConfigError(f"its logprobs in a prefix tree differ from transformers' own by {worst:.2g}")


@contextmanager
def refusing(model: Any) -> Iterator[None]:
    """Say of what goes wrong in the context that this kind of model cannot be trained. Raises ConfigError."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be trained: {reason}. docs/training.md lists the kinds that can"
        ) from error


def unscorable(config: Any) -> str | None:
    """Return why a model of this configuration is scored wrong in contexts longer than `check` tries, None if it is not."""
    settings = config.get_text_config().to_dict()
    if settings.get("attention_chunk_size") is not None:
        return f"attention_chunk_size = {settings['attention_chunk_size']}: attention in chunks is not supported"
    for kind in _rope_kinds([settings.get("rope_parameters"), settings.get("rope_scaling")]):
        if kind in LENGTH_DEPENDENT_ROPE:
            return f"rope_type = {kind!r}: its position embedding changes with the length of what is scored together"
    return None


def _rope_kinds(value: Any) -> Iterator[str]:
    """The kinds of rotary position embedding in a configuration, which may have one for each kind of layer."""
    if isinstance(value, list):
        for item in value:
            yield from _rope_kinds(item)
    elif isinstance(value, dict):
        kind = value.get("rope_type", value.get("type"))
        if isinstance(kind, str):
            yield kind
        yield from _rope_kinds(list(value.values()))


def _line(ids: Tensor) -> TrainingSequence:
    """A sequence of which every token is trained on, at temperature 1."""
    zeros, whole = torch.zeros(len(ids)), torch.zeros_like(ids)
    return TrainingSequence(
        token_ids=ids,
        loss_mask=torch.ones_like(ids, dtype=torch.bool),
        behaviour_logprobs=zeros,
        versions=whole,
        temperatures=torch.ones(len(ids)),
        advantages=zeros,
        rewards=zeros,
        turns=whole,
    )


def decoder_layers(backbone: Any) -> list[nn.Module]:
    """Return the decoder layers of a transformers model without its head, [] where they are not found."""
    decoder, count = backbone.get_decoder(), backbone.config.get_text_config(decoder=True).num_hidden_layers
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return list(lists[0]) if lists else []


def token_scores(
    logits: Tensor, targets: Tensor, temperatures: Tensor, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ([T] log softmax(logits / temperature) at `targets`, [T] the distribution's entropy). logits: [T, V] float32.

        log p = log softmax(z / τ)        H = −Σ p·log p ≥ 0, where 0·log 0 = 0

    A logit of −inf is a token that cannot be drawn: its p is 0, and it adds nothing to the entropy or its gradient.
    """
    distribution = torch.log_softmax(logits / temperatures.unsqueeze(-1), dim=-1)
    logprobs = distribution.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # Not log(sum) − Σ p·z, which subtracts large numbers and is below 0 for a peaked distribution. The clamp makes
        # 0·log 0 a 0, forward and backward.
        finite = distribution.clamp(min=torch.finfo(distribution.dtype).min)
        entropy = -(distribution.exp() * finite).sum(-1)
    return logprobs, entropy
