"""Sampling on transformers' continuous batching: each request its own way, each token recorded.

It is installed as the last logits processor, because a request here carries its own way to draw (`draw`), seed and stop rules, and every
token must be recorded with its logprob and the version of the weights that produced it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.requests import FutureRequestState

from agentrl.engine.embedded.draw import draw
from agentrl.engine.protocol import Sampling


@dataclass(eq=False)
class Request:
    """One reply in the making. `T` grows by one with every forward pass that includes it."""

    input_ids: list[int]
    sampling: Sampling
    on_change: Callable[[], None]
    """Called, from the generation thread, when tokens arrived or the request ended."""
    streams: bool = False
    output_ids: list[int] = field(default_factory=list)  # [T]
    logprobs: list[float] = field(default_factory=list)  # [T]
    top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)  # [T][K]
    version_starts: list[tuple[str, int]] = field(default_factory=list)
    """(version, first output position sampled under it), in order."""
    finish: dict[str, Any] | None = None
    """SGLang's `finish_reason`, once it ended."""
    batching_id: str = ""
    slot: int = -1

    def weight_versions(self, count: int) -> list[dict[str, Any]]:
        """SGLang's spans, `[{"version", "start", "end"}, ...]`, over the first `count` output tokens."""
        starts = [(version, start) for version, start in self.version_starts if start < count]
        ends = [start for _, start in starts[1:]] + [count] * bool(starts)
        return [
            {"version": version, "start": start, "end": end} for (version, start), end in zip(starts, ends, strict=True)
        ]


class RequestSampler(ContinuousBatchingLogitsProcessor):
    """The logits processor that samples: it records each request's token and lets only that token through."""

    supported_kwargs = {"slot": int}  # noqa: RUF012 - the base class's contract
    ignored_kwargs = ()

    def __init__(
        self, lock: threading.RLock, on_finished: Callable[[Request], None], decode: Callable[[list[int]], str]
    ) -> None:
        self.version = "0"
        self.requests: dict[int, Request] = {}
        self._rows = 0
        self._lock = lock
        self._on_finished = on_finished
        self._decode = decode

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Say that no row has a request."""
        int32_tensor.fill_(-1)

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """Return the slot of each row's request."""
        self._rows = len(requests_with_new_token)
        return torch.tensor(
            [r.state.logit_processor_kwargs["slot"] for r in requests_with_new_token], dtype=torch.int32
        )

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Sample a token for each row, as its own request asks; return scores that leave it no choice."""
        # A prompt whose prefill is split has a row too, but no new token: beyond `_rows`, slots are an earlier batch's.
        requests = [self.requests.get(slot) for slot in tensor_arg[: self._rows].tolist()]
        rows = [row for row, request in enumerate(requests) if request is not None]
        live = [request for request in requests if request is not None]
        chosen = torch.zeros(scores.shape[0], dtype=torch.long)
        if live:
            samplings = [r.sampling for r in live]
            tokens, logprobs = draw(scores[rows].float().cpu(), samplings, [r.output_ids for r in live])
            chosen[rows] = tokens
            picked = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
            with self._lock:
                for row, (request, token, logprob) in enumerate(zip(live, tokens.tolist(), picked, strict=True)):
                    if request.finish is None:
                        self._append(request, token, logprob, logprobs[row])
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, chosen.unsqueeze(1).to(scores.device), 0.0)

    def _append(self, request: Request, token: int, logprob: float, distribution: torch.Tensor) -> None:
        if request.sampling.top_logprobs:
            top = distribution.topk(min(request.sampling.top_logprobs, distribution.shape[0]))
            request.top_logprobs.append(list(zip(top.values.tolist(), top.indices.tolist(), strict=True)))
        if not request.version_starts or request.version_starts[-1][0] != self.version:
            request.version_starts.append((self.version, len(request.output_ids)))
        request.logprobs.append(logprob)
        # Last: a reader in another thread takes the number of ids for the number of complete tokens.
        request.output_ids.append(token)
        sampling = request.sampling
        if token in sampling.stop_token_ids:
            request.finish = {"type": "stop", "matched": token}
        elif (matched := self._matched_stop(request)) is not None:
            request.finish = {"type": "stop", "matched": matched}
        elif len(request.output_ids) >= sampling.max_new_tokens:
            request.finish = {"type": "length", "length": sampling.max_new_tokens}
        if request.finish is not None:
            self._on_finished(request)
        elif request.streams:
            request.on_change()

    def _matched_stop(self, request: Request) -> str | None:
        stops = request.sampling.stop
        if not stops:
            return None
        # A stop string of n characters ends within the last n tokens; a few more cover split characters.
        tail = self._decode(request.output_ids[-(max(map(len, stops)) + 4) :])
        return next((stop for stop in stops if stop in tail), None)
