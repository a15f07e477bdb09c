"""One token for each of several requests, each drawn its own way and recorded, with SGLang's meaning of every parameter.

logits ─► penalties ─► bias ─► / temperature ─► logprobs, which are reported ─► cuts ─► the token ─► Request.output_ids
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentrl.engine.embedded.paged_cache import CachedSequence
from agentrl.engine.protocol import Sampling


@dataclass(eq=False)
class Request:
    """One reply in the making. `T` grows by one with every forward pass that includes it."""

    input_ids: list[int]
    sampling: Sampling
    on_change: Callable[[], object]
    """Called when tokens arrived or the request ended."""
    stream_interval: int = 0
    """After the first token, and every so many more, `on_change` is called; 0: at the end alone."""
    adapter: str | None = None
    """Name of the LoRA adapter that it is computed with; None: the model alone."""
    output_ids: list[int] = field(default_factory=list)  # [T]
    logprobs: list[float] = field(default_factory=list)  # [T]
    top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)  # [T][K]
    version_starts: list[tuple[str, int]] = field(default_factory=list)
    """(version, first output position sampled under it), in order."""
    cached_tokens: int | None = None
    """Tokens of the prompt whose keys and values were there when it began; None: it has not."""
    finish: dict[str, Any] | None = None
    """SGLang's `finish_reason`, once it ended."""
    sequence: CachedSequence = field(init=False)
    """Its prompt and reply so far, while it runs."""
    new_tokens: int = field(init=False)
    """Tokens of these that the next forward pass computes."""

    def append(self, token: int, logprob: float, distribution: torch.Tensor, version: str) -> None:
        """Record one more token, drawn from a distribution of logprobs [V]."""
        if self.sampling.top_logprobs:
            top = distribution.topk(min(self.sampling.top_logprobs, len(distribution)))
            self.top_logprobs.append(list(zip(top.values.tolist(), top.indices.tolist(), strict=True)))
        if not self.version_starts or self.version_starts[-1][0] != version:
            self.version_starts.append((version, len(self.output_ids)))
        self.logprobs.append(logprob)
        self.output_ids.append(token)

    def finish_reason(self, decode: Callable[[list[int]], str]) -> dict[str, Any] | None:
        """Return SGLang's `finish_reason` as its last token has it; None: it goes on."""
        sampling, ids = self.sampling, self.output_ids
        if ids[-1] in sampling.stop_token_ids:
            return {"type": "stop", "matched": ids[-1]}
        if sampling.stop:
            # A stop string of n characters ends within the last n tokens; a few more cover split characters.
            tail = decode(ids[-(max(map(len, sampling.stop)) + 4) :])
            if matched := next((stop for stop in sampling.stop if stop in tail), None):
                return {"type": "stop", "matched": matched}
        return {"type": "length", "length": len(ids)} if len(ids) >= sampling.max_new_tokens else None

    @property
    def reports(self) -> bool:
        """Whether `on_change` is to be called after its last token."""
        interval = self.stream_interval
        return self.finish is not None or (interval > 0 and (len(self.output_ids) - 1) % interval == 0)

    @property
    def weight_versions(self) -> list[dict[str, Any]]:
        """SGLang's spans over the output tokens, `[{"version", "start", "end"}, ...]`."""
        ends = [*(start for _, start in self.version_starts[1:]), len(self.output_ids)]
        return [
            {"version": version, "start": start, "end": end}
            for (version, start), end in zip(self.version_starts, ends, strict=False)
        ]


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], outputs: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row: the argmax of p / e, with e exponentially distributed, falls on each token with its probability p.

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
    exponential = torch.empty_like(logprobs).exponential_()
    for row, (sampling, output) in enumerate(zip(samplings, outputs, strict=True)):
        if sampling.seed is not None:
            generator = torch.Generator().manual_seed(hash((sampling.seed, len(output))) & (2**63 - 1))
            exponential[row].exponential_(generator=generator)
    drawn = (_cut(logprobs, samplings).exp() / exponential).argmax(dim=-1)
    return torch.where(greedy, logprobs.argmax(dim=-1), drawn), logprobs


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
