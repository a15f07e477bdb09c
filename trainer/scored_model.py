"""A causal LM that says how likely the trained tokens of a pack are, and never holds the logits of all of them.

The head is applied to a few hidden states at a time: logits of at most LOGITS_AT_ONCE numbers exist at once, in the backward
pass too, where they are computed again. Tokens that are not trained on need no logits at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.errors import ConfigError
from agentrl.trainer.packing import Pack
from agentrl.trainer.tree_attention import use_tree_attention

LOGITS_AT_ONCE = 2**25
"""Numbers: 128 MiB in float32."""


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
        """Raise ConfigError unless a short sequence gets the logprobs that transformers itself gives it."""
        vocabulary, device = self.model.get_output_embeddings().weight.shape[0], self.model.device
        ids = (torch.arange(12, device=device) * 7919 + 11) % vocabulary
        steps = torch.arange(len(ids), device=device)
        one = torch.ones(len(ids) - 1, device=device)
        line = Pack(
            token_ids=ids,
            position_ids=steps,
            subtree_end=torch.full_like(ids, len(ids)),
            source=steps[:-1],
            targets=ids[1:],
            behaviour_logprobs=one,
            versions=steps[1:],
            temperatures=one,
            advantages=one,
            rewards=one,
            turns=steps[1:],
            index=torch.zeros_like(steps[1:]),
            count=1,
        )
        own = self(line).logprobs
        modules = [module for module in self.model.modules() if hasattr(module, "config")]
        for module in modules:
            module.config._attn_implementation = "eager"
        theirs, _ = token_scores(
            self.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, :-1].float(), ids[1:], one
        )
        use_tree_attention(self.model)
        worst = float((own - theirs).abs().max())
        if not worst < (1e-3 if own.dtype == torch.float32 and self.model.dtype == torch.float32 else 0.5):
            raise ConfigError(
                f"model.path: {type(self.model).__name__} cannot be trained: its attention or its logits have a form that "
                f"agentrl.trainer does not know (its logprobs differ from transformers' own by {worst:.2g})"
            )


def decoder_layers(backbone: Any) -> list[nn.Module]:
    """The layers of a transformers model without its head."""
    return list(getattr(backbone, "layers", None) or getattr(backbone, "h", []))


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
