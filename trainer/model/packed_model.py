"""A causal LM on packs: the logprobs and entropies of trained tokens, without ever holding the logits of all of them.

The head is applied to a few hidden states at a time: logits of at most LOGITS_AT_ONCE numbers exist at once, in the backward
pass too, where they are computed again. Tokens that are not trained on need no logits at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
"""Numbers of logits: 128 MiB in float32."""
TOLERANCE = 1e-3
"""How far a logprob of the check may be from transformers' own."""
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")
"""Rotary position embeddings whose angles depend on the longest position of a forward pass: in a pack, on the other sequences."""


def load_model(path: Path) -> Any:
    """Load the causal LM in a folder, in float32 and in evaluation mode.

    Args:
        path: A Hugging Face model directory with safetensors.

    Returns:
        The model.

    Raises:
        ConfigError: The folder holds none that transformers can load.
    """
    try:
        # Of other forms of weights some are pickles, which run code when they are read.
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        ).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).partition("\nModel type should be one of")[0]  # which goes on with some two hundred
        raise ConfigError(f"model.path: {path} has no causal LM that transformers can load: {reason}") from error


@dataclass(frozen=True)
class TokenLogprobs:
    """The logprobs and entropies that a model gives the M trained tokens of a pack."""

    logprobs: Tensor
    """[M] log softmax(logits / temperature) at each token, float32."""
    entropies: Tensor
    """[M] entropy of the distribution that each was drawn from, in nats."""
    hidden_states: Tensor
    """[M, width] the hidden states that predict them."""


def recompute_activations(layers: Sequence[nn.Module]) -> None:
    """Make each layer keep its inputs alone for the backward pass, and compute the rest again there.

    It does not depend on the model being in training mode, as that of transformers does, nor on its kind.

    Args:
        layers: The decoder layers of a model.

    Raises:
        ConfigError: There are none, because those of the model are not known.
    """
    if not layers:
        raise ConfigError(
            "trainer.recompute_activations: the layers of this kind of model are not known; set it to false"
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


class PackedModel(nn.Module):
    """A transformers causal LM on packs of prefix trees."""

    def __init__(self, model: Any) -> None:
        """Make the model attend to prefix trees.

        Args:
            model: A transformers causal LM.

        Raises:
            ConfigError: It is of a kind whose logprobs cannot be reproduced.
        """
        super().__init__()
        self.model = model
        with refusing(model):
            if reason := unsupported_reason(model.config):
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

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenLogprobs:
        """Return logprobs and entropies of the trained tokens, each given those before it in its own trajectory.

        Args:
            pack: The pack.
            entropy_gradient: Whether the entropies carry a gradient too.

        Returns:
            [M] logprobs, entropies and hidden states.
        """
        out = self.model.base_model(
            input_ids=pack.token_ids.unsqueeze(0),
            position_ids=pack.position_ids.unsqueeze(0),
            use_cache=False,
            tree=pack,
        )
        hidden_states = out.last_hidden_state[0][pack.source]
        logprobs, entropies = self.head_logprobs(
            hidden_states, pack.targets, pack.temperatures, entropy_gradient=entropy_gradient
        )
        return TokenLogprobs(logprobs, entropies, hidden_states)

    def head_logprobs(
        self, hidden_states: Tensor, targets: Tensor, temperatures: Tensor, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Apply the head to hidden states, a few at a time.

        Args:
            hidden_states: [M, width].
            targets: [M] token ids.
            temperatures: [M].
            entropy_gradient: Whether the entropies carry a gradient too.

        Returns:
            ([M] logprobs, [M] entropies).
        """
        head = self.model.get_output_embeddings()
        rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
        pieces = []
        for start in range(0, max(1, len(targets)), rows):
            chunk = slice(start, start + rows)
            inputs = (head.weight, head.bias, hidden_states[chunk], targets[chunk], temperatures[chunk])
            alone = len(targets) <= rows or not torch.is_grad_enabled()
            call = self._chunk if alone else partial(checkpoint, self._chunk, use_reentrant=False)
            pieces.append(call(*inputs, entropy_gradient))
        return torch.cat([logprobs for logprobs, _ in pieces]), torch.cat([entropies for _, entropies in pieces])

    def _chunk(
        self,
        weight: Tensor,
        bias: Tensor | None,
        hidden_states: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logits = nn.functional.linear(hidden_states, weight, bias).float() * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logprobs_and_entropies(logits, targets, temperatures, entropy_gradient=entropy_gradient)

    @torch.no_grad()
    def check(self) -> None:
        """Check that a prefix tree gets the logprobs that transformers itself gives its sequences one by one.

        Two of the three sequences share a beginning, and the third shares nothing: what goes wrong in a tree only (state that
        flows along the row, positions counted by index) shows, and so does an unknown form of attention or logits.

        Raises:
            ConfigError: It does not.
        """
        vocabulary, device = self.model.get_output_embeddings().weight.shape[0], self.model.device
        ids = (torch.arange(26) * 7919 + 11) % vocabulary
        shared = ids[:6]
        sequences = in_tree_order(
            [
                trained_throughout(torch.cat([shared, ids[6:14]])),
                trained_throughout(torch.cat([shared, ids[14:19]])),
                trained_throughout(ids[19:]),
            ]
        )
        with refusing(self.model):
            own = self(prefix_tree(sequences).to(device)).logprobs
            theirs = []
            with eager_attention(self.model):
                for alone in (s.token_ids.to(device) for s in sequences):
                    logits = self.model(input_ids=alone.unsqueeze(0), use_cache=False).logits[0, :-1].float()
                    logprobs, _ = logprobs_and_entropies(logits, alone[1:], torch.ones_like(alone[1:]))
                    theirs.append(logprobs)
            worst = float((own - torch.cat(theirs)).abs().max())
            if not worst < TOLERANCE:
                raise ConfigError(f"its logprobs in a prefix tree differ from transformers' own by {worst:.2g}")


@contextmanager
def refusing(model: Any) -> Iterator[None]:
    """Say of what goes wrong in the context that this kind of model cannot be trained.

    Args:
        model: The model.

    Yields:
        Nothing.

    Raises:
        ConfigError: Something went wrong, but for a lack of memory.
        MemoryError: The memory is too small, of which the kind of model is not the cause.
        torch.OutOfMemoryError: The same of the device's memory.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be trained: {reason}. docs/training.md lists the kinds that can"
        ) from error


def unsupported_reason(config: Any) -> str | None:
    """Return why a model of this configuration is evaluated wrong in contexts longer than `check` tries, None if it is not."""
    settings = config.get_text_config().to_dict()
    if settings.get("attention_chunk_size") is not None:
        return f"attention_chunk_size = {settings['attention_chunk_size']}: attention in chunks is not supported"
    for kind in _rope_kinds([settings.get("rope_parameters"), settings.get("rope_scaling")]):
        if kind in LENGTH_DEPENDENT_ROPE:
            return f"rope_type = {kind!r}: its position embedding changes with the length of what is computed together"
    return None


def _rope_kinds(value: Any) -> Iterator[str]:
    """Yield the kinds of rotary position embedding in a configuration, which may have one for each kind of layer."""
    if isinstance(value, list):
        for item in value:
            yield from _rope_kinds(item)
    elif isinstance(value, dict):
        kind = value.get("rope_type", value.get("type"))
        if isinstance(kind, str):
            yield kind
        yield from _rope_kinds(list(value.values()))


def trained_throughout(ids: Tensor) -> TrainingSequence:
    """Return a sequence of which every token is trained on, at temperature 1."""
    zeros, integers = torch.zeros(len(ids)), torch.zeros_like(ids)
    return TrainingSequence(
        token_ids=ids,
        loss_mask=torch.ones_like(ids, dtype=torch.bool),
        behaviour_logprobs=zeros,
        versions=integers,
        temperatures=torch.ones(len(ids)),
        advantages=zeros,
        rewards=zeros,
        turn_index=integers,
    )


def decoder_layers(backbone: Any) -> list[nn.Module]:
    """Return the decoder layers of a transformers model without its head, [] where they are not found."""
    decoder, count = backbone.get_decoder(), backbone.config.get_text_config(decoder=True).num_hidden_layers
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return list(lists[0]) if lists else []


def logprobs_and_entropies(
    logits: Tensor, targets: Tensor, temperatures: Tensor, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the logprobs of targets, and the entropies of the distributions that they were drawn from.

        log p = log softmax(z / τ)        H = −Σ p·log p ≥ 0, where 0·log 0 = 0

    A logit of −inf is a token that cannot be drawn: its p is 0, and it adds nothing to the entropy or its gradient.

    Args:
        logits: [T, V] z, float32.
        targets: [T] token ids.
        temperatures: [T] τ.
        entropy_gradient: Whether the entropies carry a gradient too.

    Returns:
        ([T] logprobs, [T] entropies in nats).
    """
    distribution = torch.log_softmax(logits / temperatures.unsqueeze(-1), dim=-1)
    logprobs = distribution.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # Not log(sum) − Σ p·z, which subtracts large numbers and is below 0 for a peaked distribution. The clamp makes
        # 0·log 0 a 0, forward and backward.
        finite = distribution.clamp(min=torch.finfo(distribution.dtype).min)
        entropies = -(distribution.exp() * finite).sum(-1)
    return logprobs, entropies
