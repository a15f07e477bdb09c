"""Whether a generation can be what a server sampled for a request: what fails here is never recorded, and never trained on.

A server whose weights or kernels went wrong answers with status 200 all the same: with a logprob that is NaN, an id that the
model has no row for, or versions that leave tokens out. One such token in a batch spoils the gradient of all others.

Values come from JSON, so nothing is taken for granted about the types of ids, logprobs and versions, and nothing here raises on account
of them. Who reads the JSON has made lists and pairs of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.record.tokens import Generation, VersionSpan

MAX_LOGPROB = 2e-3
"""Rounding may take the logprob of a certain token above 0 by so much; more is no logprob. The embedded engine and SGLang
0.5.23, in float32 and bfloat16, reported 0 at most over 71,000 tokens; a softmax kept in bfloat16 may round by 2^-9."""
MIN_LOGPROB = -1000.0
"""A token of a smaller logprob was not sampled: float32 holds no probability below e^-104."""
FINISHES = ("stop", "length", "abort")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The bounds that a request sets its generation. None: not known, and not checked."""

    max_new_tokens: int | None = None
    vocabulary: int | None = None
    """Rows of the model's output layer, which may be more than its tokenizer has words."""
    newest_version: int | None = None
    """The newest weights that a server can have."""
    oldest_version: int | None = None
    """The weights that every server had when the request was sent."""
    only_version: int | None = None
    """The weights that can have made its tokens so far; None: a weight update has begun since it was sent, or they are not known."""
    top_logprobs: int = 0


def fault_of(generation: Generation, expected: Expected) -> str | None:
    """Say what is wrong with a generation, whole or partial; None: it is sound."""
    return (
        fault_of_tokens(generation.output_ids, generation.logprobs, expected)
        or fault_of_versions(generation.versions, len(generation.output_ids), expected)
        or _fault_of_length(generation, expected)
        or fault_of_top(generation.top_logprobs, expected)
    )


def fault_of_tokens(ids: Sequence[Any], logprobs: Sequence[Any], expected: Expected, start: int = 0) -> str | None:
    """Say what is wrong with tokens [T] and their logprobs [T], the first of which is the reply's token `start`."""
    if len(logprobs) != len(ids):
        return f"it has {len(ids)} tokens and the logprobs of {len(logprobs)}"
    if _all_sound(ids, logprobs, expected.vocabulary):
        return None
    for position, (token, logprob) in enumerate(zip(ids, logprobs, strict=True), start):
        if (fault := fault_of_id(token, expected.vocabulary)) is not None:
            return f"token {position} is {fault}"
        if not _is_number(logprob) or not MIN_LOGPROB <= logprob <= MAX_LOGPROB:
            return f"the logprob of token {position} is {_shown(logprob)}"
    return None


def _all_sound(ids: Sequence[Any], logprobs: Sequence[Any], vocabulary: int | None) -> bool:
    """Whether all tokens are plainly sound, found without a loop of Python's: states of replies are checked as they stream."""
    return (
        set(map(type, ids)) == {int}
        and set(map(type, logprobs)) == {float}
        and (
            min(ids) >= 0
            and (vocabulary is None or max(ids) < vocabulary)
            and math.isfinite(sum(logprobs))  # a NaN would hide from `min` and `max`
            and min(logprobs) >= MIN_LOGPROB
            and max(logprobs) <= MAX_LOGPROB
        )
    )


def fault_of_id(token: Any, vocabulary: int | None) -> str | None:
    """Say why a value is no token id of a vocabulary; None: it is one."""
    if type(token) is not int:
        return f"{_shown(token)}, which is no id"
    if token < 0 or (vocabulary is not None and token >= vocabulary):
        return f"{_shown(token)}, outside the vocabulary of {vocabulary or 'unknown size'}"
    return None


def fault_of_versions(versions: Sequence[VersionSpan], count: int, expected: Expected) -> str | None:
    """Say what is wrong with the version spans of `count` tokens: they must cover [0, count) in order, without a gap."""
    end = 0
    for span in versions:
        if any(type(value) is not int for value in vars(span).values()):
            return f"a version span is {_shown(span)}"
        if span.start != end or span.end <= span.start:
            return f"a version span covers tokens {span.start} to {span.end} where one from {end} on was due"
        if span.version < 0 or (expected.newest_version is not None and span.version > expected.newest_version):
            return f"tokens {span.start} to {span.end} are of version {span.version}, the newest is {expected.newest_version}"
        end = span.end
    return None if end == count else f"its version spans cover {end} of {count} tokens"


def _fault_of_length(generation: Generation, expected: Expected) -> str | None:
    count, bound, tops = len(generation.output_ids), expected.max_new_tokens, len(generation.top_logprobs)
    if bound is not None and count > bound:
        return f"it has {count} tokens, {bound} were asked for at most"
    if generation.finish not in FINISHES:
        return f"it ended with {_shown(generation.finish)}"
    if not count and generation.finish != "abort":
        return f"it ended with {generation.finish} before its first token"
    if tops != count and (tops or expected.top_logprobs):
        return f"it has {count} tokens and the most likely ones of {tops}"
    return None


def fault_of_top(tops: Sequence[Sequence[tuple[Any, Any]]], expected: Expected, start: int = 0) -> str | None:
    """Say what is wrong with the (logprob, id) [T][K] of the most likely tokens, the first at the reply's token `start`."""
    for position, top in enumerate(tops, start):
        for logprob, token in top:
            # A grammar forbids tokens: these are reported at -inf.
            if not (_is_number(logprob) and logprob <= MAX_LOGPROB) or fault_of_id(token, expected.vocabulary):
                return f"among the most likely tokens at {position} is {_shown(token)} with logprob {_shown(logprob)}"
    return None


def rounded(logprobs: Iterable[float]) -> list[float]:
    """Return sound logprobs without what rounding took them above 0."""
    return [0.0 if logprob >= 0 else float(logprob) for logprob in logprobs]


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and not math.isnan(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
