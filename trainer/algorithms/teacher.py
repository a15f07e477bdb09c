"""On-policy distillation: what another model, behind a server, would have given to the tokens that the policy sampled.

The server speaks SGLang's native API, or, where the URL ends with /v1, OpenAI's completions with `echo`. The embedded one scores no prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
import torch

from agentrl.errors import TrainerError
from agentrl.record.soundness import Expected, fault_of_tokens, rounded
from agentrl.system.failure_text import without_secrets
from agentrl.system.this_process import is_loopback
from agentrl.trainer.packing import TrainingSequence

TRIES = 3
REQUESTS_AT_ONCE = 16
"""Requests to the teacher at the same time."""
LogprobsOf = Callable[[list[int]], list[float | None]]
"""From [T] ids to [T] log q of each token given those before it; None for the first."""


def with_teacher_logprobs(sequences: Sequence[TrainingSequence], url: str, timeout_s: float) -> list[TrainingSequence]:
    """Return the sequences with the teacher's logprobs of their tokens, at temperature 1.

    Args:
        sequences: The batch.
        url: The teacher's server. It must have the policy's vocabulary.
        timeout_s: How long it may take for all of them.

    Returns:
        The sequences, in the same order.

    Raises:
        TrainerError: The server refuses, or is not done within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    threads = ThreadPoolExecutor(REQUESTS_AT_ONCE)
    try:
        with httpx.Client(base_url=url, trust_env=not is_loopback(url)) as http:
            server = _Server(http, deadline)
            # In a thread each, because a server that sends a byte now and then keeps a request from timing out.
            logprobs_of = threads.submit(_api_of, server, url).result(deadline - time.monotonic())
            found = threads.map(
                lambda s: _checked_logprobs(logprobs_of, s.token_ids.tolist()),
                sequences,
                timeout=deadline - time.monotonic(),
            )
            return [
                replace(s, teacher_logprobs=torch.tensor(logprobs))
                for s, logprobs in zip(sequences, found, strict=True)
            ]
    except (TimeoutError, httpx.TimeoutException) as error:
        raise TrainerError(
            f"`trainer.teacher.url` = {without_secrets(url)} did not give the logprobs of {len(sequences)} sequences within {timeout_s:g} s. Look at the "
            "server; where it is only slow, raise `trainer.step_timeout_s`, of which a teacher has half, or lower `rollout.batch_size`"
        ) from error
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise TrainerError(
            f"`trainer.teacher.url` = {without_secrets(f'{url} gave no logprobs: {type(error).__name__}: {error}')}. It must be a server with SGLang's "
            "/generate, or, where the URL ends with /v1, with OpenAI's completions and `echo`, of a model with the policy's vocabulary"
        ) from error
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _Server:
    http: httpx.Client
    deadline: float

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._json("POST", path, body)

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        reply = self.http.request(method, path, json=body, timeout=left)
        reply.raise_for_status()
        return reply.json()


def _api_of(server: _Server, url: str) -> LogprobsOf:
    return _completions(server) if url.rstrip("/").endswith("/v1") else partial(_generate, server)


def _checked_logprobs(logprobs_of: LogprobsOf, ids: list[int]) -> list[float]:
    """Return [T] log q, each a number; 0 for the first token. What is none is asked for again before it is an error.

    Raises:
        ValueError: One of them is still none.
        AssertionError: Never.
    """
    for remaining in reversed(range(TRIES)):
        _, *rest = logprobs_of(ids)
        fault = fault_of_tokens(ids[1:], rest, Expected(), 1)
        if fault is None:
            return [0.0, *rounded(logprob for logprob in rest if logprob is not None)]
        if not remaining:
            raise ValueError(fault)
    raise AssertionError("unreachable")


def _generate(server: _Server, ids: list[int]) -> list[float | None]:
    sampling = {"max_new_tokens": 0, "temperature": 1.0}
    body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    returned = server.post("/generate", body)["meta_info"]["input_token_logprobs"]
    if [token for _, token, *_ in returned] != ids:
        raise ValueError("it returned other tokens than it was sent")
    return [logprob for logprob, *_ in returned]


def _completions(server: _Server) -> LogprobsOf:
    model = server.get("/models")["data"][0]["id"]

    def logprobs_of(ids: list[int]) -> list[float | None]:
        # One token more than needed, because SGLang takes no 0.
        body = {"model": model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 1.0}
        content = server.post("/completions", body)
        logprobs: list[float | None] = content["choices"][0]["logprobs"]["token_logprobs"]
        if content["usage"]["prompt_tokens"] != len(ids) or not len(ids) <= len(logprobs) <= len(ids) + 1:
            raise ValueError(f"it returned the logprobs of {len(logprobs)} tokens where it was sent {len(ids)}")
        return logprobs[: len(ids)]

    return logprobs_of
