"""A request to generate, in the words of SGLang's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.engine.protocol import Sampling
from agentrl.record.tokens import ImageSpan

STREAM_INTERVAL_TOKENS = 32
"""How many tokens a server may gather before it sends them. A killed server loses at most so many of each reply, and
they are sampled again."""
STREAM_STATES = 64
"""Where a server sends the whole reply again with every state, so many states of a long reply bound what that costs."""


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Return how to sample; what leaves the policy's own distribution as it is stays out."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        # SGLang reports a top_k of 1 at another temperature where others in the batch are not greedy.
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "skip_special_tokens": False,
    }
    if sampling.altered:
        params |= {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "repetition_penalty": sampling.repetition_penalty,
        }
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.json_schema is not None:
        params["json_schema"] = sampling.json_schema
    return params


def stream_interval(sampling: Sampling, *, watched: bool, incremental: bool) -> int:
    """Return how many tokens a server gathers before it sends them.

    Args:
        sampling: How to sample.
        watched: Whether somebody waits for each token.
        incremental: Whether the server sends each token once, and not the whole reply with every state.
    """
    long = 0 if incremental else sampling.max_new_tokens // STREAM_STATES
    return 1 if watched else max(STREAM_INTERVAL_TOKENS, long)


def with_single_placeholders(input_ids: list[int], images: Sequence[ImageSpan]) -> list[int]:
    """Return a prompt with one id where each image is: SGLang makes the image's many of it."""
    ids, end = [], 0
    for image in images:
        ids += input_ids[end : image.start + 1]
        end = image.start + image.length
    return ids + input_ids[end:]
