"""On-policy distillation: what another model, behind an SGLang server, would have given to the tokens that the policy sampled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import torch

from agentrl.errors import TrainerError
from agentrl.trainer.packing import TrainingSequence

AT_ONCE = 16
"""Requests to the teacher at the same time."""


def with_teacher(sequences: Sequence[TrainingSequence], url: str, timeout_s: float) -> list[TrainingSequence]:
    """The sequences with the teacher's logprobs of their tokens, at temperature 1. It must have the policy's vocabulary.

    Raises TrainerError when the server refuses, or does not answer within `timeout_s`.
    """
    with httpx.Client(base_url=url, timeout=timeout_s) as http, ThreadPoolExecutor(AT_ONCE) as threads:
        scored = threads.map(lambda s: _logprobs(http, s.token_ids.tolist()), sequences)
        return [
            replace(s, teacher_logprobs=torch.tensor(logprobs)) for s, logprobs in zip(sequences, scored, strict=True)
        ]


def _logprobs(http: httpx.Client, ids: list[int]) -> list[float]:
    """[T] log q of each token given those before it; 0 for the first."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    try:
        reply = http.post("/generate", json=body)
        reply.raise_for_status()
        scored = reply.json()["meta_info"]["input_token_logprobs"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(
            f"trainer.teacher_url = {http.base_url} gave no logprobs: {type(error).__name__}: {error}. It must be an SGLang server of "
            "a model with the policy's vocabulary"
        ) from error
    if [token for _, token, *_ in scored] != ids:
        raise TrainerError(f"trainer.teacher_url = {http.base_url} scored other tokens than it was sent")
    return [0.0 if logprob is None else logprob for logprob, *_ in scored]
