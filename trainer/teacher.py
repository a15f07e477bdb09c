"""On-policy distillation: what another model, behind a server, would have given to the tokens that the policy sampled.

The server speaks SGLang's native API, as the embedded one does, or, where the URL ends with /v1, OpenAI's completions with `echo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import torch

from agentrl.engine.soundness import Expected, fault_of_tokens, rounded
from agentrl.errors import TrainerError
from agentrl.privacy import without_secrets
from agentrl.trainer.packing import TrainingSequence

TRIES = 3
AT_ONCE = 16
"""Requests to the teacher at the same time."""
Ask = Callable[[httpx.Client, list[int]], list[float | None]]
"""[T] log q of each token given those before it; None for the first."""


def with_teacher(sequences: Sequence[TrainingSequence], url: str, timeout_s: float) -> list[TrainingSequence]:
    """The sequences with the teacher's logprobs of their tokens, at temperature 1. It must have the policy's vocabulary.

    Raises TrainerError when the server refuses, or does not answer within `timeout_s`.
    """
    with httpx.Client(base_url=url, timeout=timeout_s) as http, ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            ask = _completions(http) if url.rstrip("/").endswith("/v1") else _generate
            scored = threads.map(lambda s: _sound(ask, http, s.token_ids.tolist()), sequences)
            return [
                replace(s, teacher_logprobs=torch.tensor(logprobs))
                for s, logprobs in zip(sequences, scored, strict=True)
            ]
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise TrainerError(
                f"trainer.teacher_url = {without_secrets(f'{url} gave no logprobs: {type(error).__name__}: {error}')}. It must be a server with SGLang's "
                "/generate, or, where the URL ends with /v1, with OpenAI's completions and `echo`, of a model with the policy's vocabulary"
            ) from error


def _sound(ask: Ask, http: httpx.Client, ids: list[int]) -> list[float]:
    """[T] log q, each a number; 0 for the first token. What is none is asked for again before it is an error."""
    for remaining in reversed(range(TRIES)):
        _, *rest = ask(http, ids)
        fault = fault_of_tokens(ids[1:], rest, Expected(), 1)
        if fault is None:
            return [0.0, *(rounded(logprob) for logprob in rest if logprob is not None)]
        if not remaining:
            raise ValueError(fault)
    raise AssertionError("unreachable")


def _generate(http: httpx.Client, ids: list[int]) -> list[float | None]:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    scored = _post(http, "/generate", body)["meta_info"]["input_token_logprobs"]
    if [token for _, token, *_ in scored] != ids:
        raise ValueError("it scored other tokens than it was sent")
    return [logprob for logprob, *_ in scored]


def _completions(http: httpx.Client) -> Ask:
    reply = http.get("/models")
    reply.raise_for_status()
    model = reply.json()["data"][0]["id"]

    def ask(http: httpx.Client, ids: list[int]) -> list[float | None]:
        # One token more than needed, because SGLang takes no 0.
        body = {"model": model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 1.0}
        content = _post(http, "/completions", body)
        logprobs: list[float | None] = content["choices"][0]["logprobs"]["token_logprobs"]
        if content["usage"]["prompt_tokens"] != len(ids) or not len(ids) <= len(logprobs) <= len(ids) + 1:
            raise ValueError(f"it scored {len(logprobs)} tokens where it was sent {len(ids)}")
        return logprobs[: len(ids)]

    return ask


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    reply = http.post(path, json=body)
    reply.raise_for_status()
    return reply.json()
