"""One token for each of several requests, each drawn its own way, with SGLang's meaning of every parameter.

logits ─► penalties ─► bias ─► / temperature ─► logprobs, which are reported ─► cuts ─► the token
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl.engine.protocol import Sampling


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], outputs: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row, by the Gumbel-max trick.

    Args:
        logits: [N, V] float.
        samplings: [N].
        outputs: [N][T] what each row's reply holds already: penalties count it, and a seed goes by its length.

    Returns:
        The tokens [N] and log softmax(logits / temperature) [N, V], of the logits as penalties and bias have changed them. A greedy row
        takes the likeliest token and is reported at temperature 1, as SGLang does.
    """
    if any(s.has_penalties or s.logit_bias for s in samplings):
        logits = torch.stack(
            [_changed(row, sampling, output) for row, sampling, output in zip(logits, samplings, outputs, strict=True)]
        )
    greedy = torch.tensor([s.greedy for s in samplings])
    temperature = torch.tensor([1.0 if s.greedy else s.temperature for s in samplings])
    logprobs = torch.log_softmax(logits / temperature.unsqueeze(1), dim=-1)
    uniform = torch.rand(logits.shape)
    for row, (sampling, output) in enumerate(zip(samplings, outputs, strict=True)):
        if sampling.seed is not None:
            generator = torch.Generator().manual_seed(hash((sampling.seed, len(output))) & (2**63 - 1))
            uniform[row] = torch.rand(logits.shape[1], generator=generator)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), (_cut(logprobs, samplings) + gumbel).argmax(dim=-1))
    return tokens, logprobs


def _changed(logits: torch.Tensor, sampling: Sampling, output: Sequence[int]) -> torch.Tensor:
    """Return [V] one row's logits with its penalties and its bias."""
    if sampling.has_penalties and output:
        counts = torch.bincount(torch.tensor(output), minlength=len(logits))
        said = counts > 0
        logits = logits - sampling.frequency_penalty * counts - sampling.presence_penalty * said
        scale = torch.where(said, sampling.repetition_penalty, 1.0)
        logits = torch.where(logits < 0, logits * scale, logits / scale)
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        logits = logits.index_add(0, torch.tensor(tokens), torch.tensor(biases))
    return logits


def _cut(logprobs: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Return [N, V] the logprobs, -inf at the tokens that top_p, top_k or min_p leave out."""
    if all((s.top_p, s.top_k, s.min_p) == (1, -1, 0) for s in samplings):
        return logprobs
    size = logprobs.shape[1]
    top_p = torch.tensor([s.top_p for s in samplings]).unsqueeze(1)
    top_k = torch.tensor([size if s.top_k == -1 else min(s.top_k, size) for s in samplings]).unsqueeze(1)
    min_p = torch.tensor([s.min_p for s in samplings]).unsqueeze(1)
    ordered, order = logprobs.sort(dim=-1, descending=True)
    mass = ordered.exp()
    # Rounding may leave a whole mass of a little more than 1, which a top_p of 1 does not cut.
    outside = ((mass.cumsum(dim=-1) - mass) > top_p) & (top_p < 1)
    outside |= (torch.arange(size) >= top_k) | (mass < mass[:, :1] * min_p)
    return logprobs.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
