"""`Generation`, which an engine returns: token ids, each with its logprob and the version of the weights that it was sampled under."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class VersionSpan:
    """Output tokens `start` to `end` (exclusive) were sampled under weights `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True)
class ImageSpan:
    """An image, and where its tokens are: ids `start` to `start + length` of the path that it is part of."""

    url: str
    """`data:image/png;base64,...`"""
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One reply: `T` tokens, each with the logprob and the weight version it was sampled with.

    `logprobs[t]` is log softmax(logits / temperature) at the sampled token: the behaviour policy after temperature and
    before any cut (top_p, top_k, min_p); where the request had penalties or a bias, of the logits that they changed. A reply that a weight update interrupted after 12 of 40 tokens has
    `versions == [VersionSpan(3, 0, 12), VersionSpan(4, 12, 40)]`.
    """

    output_ids: list[int]  # [T]
    logprobs: list[float]  # [T]
    versions: list[VersionSpan]
    finish: FinishReason
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused."""
    top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)  # [T][K] of (logprob, id)


def join_generations(first: Generation, second: Generation) -> Generation:
    """Return the reply made of two parts, the second of which went on from the first's last token."""
    offset = len(first.output_ids)
    spans = list(first.versions)
    for span in second.versions:
        moved = VersionSpan(span.version, span.start + offset, span.end + offset)
        if spans and spans[-1].version == moved.version:
            spans[-1] = VersionSpan(moved.version, spans[-1].start, moved.end)
        else:
            spans.append(moved)
    return Generation(
        output_ids=first.output_ids + second.output_ids,
        logprobs=first.logprobs + second.logprobs,
        versions=spans,
        finish=second.finish,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def beginning(generation: Generation, count: int, finish: FinishReason) -> Generation:
    """Return the first `count` tokens of a reply, as one that ended there."""
    return replace(
        generation,
        output_ids=generation.output_ids[:count],
        logprobs=generation.logprobs[:count],
        versions=[replace(span, end=min(span.end, count)) for span in generation.versions if span.start < count],
        finish=finish,
        top_logprobs=generation.top_logprobs[:count],
    )
