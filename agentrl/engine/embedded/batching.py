"""Interruptible generation: replies in a batch that changes with every forward pass.

    submit ─► waiting ─► running ─► one forward pass over the next tokens of all ─► sample ─► Request.output_ids
                 ▲          │
                 └──────────┘ retracted by a pause, or where the cache is full: prompt and reply are computed anew

Only the generation thread computes and appends tokens. Weights and adapters change only while that thread is parked between two passes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.engine.embedded.paged_cache import PAGE_TOKENS, PagedCache, compute, use_paged_attention
from agentrl.engine.embedded.sampling import Request, draw
from agentrl.engine.model_adapters import (
    LoadedAdapters,
    check_fit,
    is_adapter_parameter,
    name_in_base,
    read_tensors,
)
from agentrl.engine.model_facts import end_ids
from agentrl.engine.protocol import PauseMode

MAX_RUNNING = 256
"""Replies that grow at the same time."""
MAX_PROMPT_TOKENS = 2048
"""Tokens of prompts in one forward pass, beside one of each reply that grows."""
PARK_TIMEOUT_S = 300.0
"""Bound of one forward pass."""


class BatchingEngine:
    """A model with its generation thread, its cache and the version of its weights. Its methods may be called from any thread."""

    def __init__(self, model_path: Path, *, dtype: str = "float32", max_total_tokens: int = 65_536) -> None:
        """Load the model of a directory."""
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
        )
        use_paged_attention(self.model)
        config = self.model.config.get_text_config()
        # One sequence must find room in the cache.
        self.context_length: int = min(config.max_position_embeddings, max_total_tokens - PAGE_TOKENS)
        self.vocabulary: int = config.vocab_size
        self.end_ids = end_ids(model_path, self.model.config, self.tokenizer)
        self.adapters = LoadedAdapters(self.model)
        self.version = "0"
        """The version of the weights in use."""
        self._pages = -(-max_total_tokens // PAGE_TOKENS)
        self._cache = PagedCache(self._pages)
        self._updates = 0
        """How often the weights changed: what one of them computed is no prefix for another."""
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._changed = threading.Condition()
        """Guards the requests, and wakes the generation thread, or those who wait for it to be parked."""
        self._parkers = 0
        self._parked = True
        self._stopping = False
        self._pause = ExitStack()
        self._pause_mode: PauseMode | None = None
        self._thread = threading.Thread(target=self._generate, name="generation", daemon=True)

    def open_requests(self) -> list[Request]:
        """Return those that have not ended."""
        with self._changed:
            return [request for request in (*self._running, *self._waiting) if request.finish is None]

    def start(self) -> None:
        """Start the generation thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the generation thread; requests in flight are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def submit(self, request: Request) -> None:
        """Queue a request; it starts with the next forward pass, or after a pause. One whose adapter is loaded no more is aborted."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
        if request.adapter not in (None, *self.adapters.names):
            self.abort(request)

    def abort(self, request: Request) -> None:
        """End a request with what it has; it finishes as SGLang's `abort`."""
        with self._changed:
            if request.finish is None:
                request.finish = {"type": "abort", "message": "Abort in waiting queue or while running"}
            self._changed.notify_all()
        request.on_change()

    def pause(self, mode: PauseMode) -> None:
        """Park the generation thread; see `PauseMode` for what happens to open requests."""
        if self._pause_mode is None:
            self._pause.enter_context(self._parking())
        self._pause_mode = mode
        if mode == "abort":
            for request in self.open_requests():
                self.abort(request)
        elif mode == "retract":
            self._retract()

    def resume(self) -> None:
        """Let the generation thread go on."""
        self._pause_mode = None
        self._pause.close()

    def load_weights(self, directory: Path, version: str | None, *, flush_cache: bool) -> None:
        """Copy the safetensors of `directory` into the model, between two forward passes or in a pause.

        Args:
            directory: A checkpoint's.
            version: What to call the weights from now on; None: as before.
            flush_cache: Whether replies that go on compute their cache anew.

        Raises:
            ValueError: They do not fit, or the cache of open requests cannot be flushed in this pause. Nothing has changed then.
        """
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{directory} holds no safetensors, or is not there")
        tensors = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
        parameters = {name_in_base(n): p for n, p in self.model.named_parameters() if not is_adapter_parameter(n)}
        check_fit(parameters, tensors, directory)
        if flush_cache and self._pause_mode == "in_place" and self.open_requests():
            raise ValueError("flush_cache must be false in pause mode in_place: open requests keep their KV cache")
        with self._parking(), torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
            if version is not None:
                self.version = version
            self._updates += 1
            if flush_cache:
                self._retract()
            self._drop_ended()
            if not self._running:
                # Broken weights may have left numbers that are not finite, which spoil what is read beside them.
                self._cache = PagedCache(self._pages)

    def change_adapters(self, change: Callable[[LoadedAdapters], None]) -> None:
        """Load or unload LoRA adapters between two forward passes. Open requests of one that goes are aborted."""
        with self._parking():
            change(self.adapters)
            for request in self.open_requests():
                if request.adapter not in (None, *self.adapters.names):
                    self.abort(request)

    @contextmanager
    def _parking(self) -> Iterator[None]:
        """Hold the generation thread between two forward passes.

        Raises:
            TimeoutError: One did not end.
        """
        try:
            with self._changed:
                self._parkers += 1
                if not self._changed.wait_for(lambda: self._parked, PARK_TIMEOUT_S):
                    raise TimeoutError(f"a forward pass took longer than {PARK_TIMEOUT_S:g} s")
            yield
        finally:
            with self._changed:
                self._parkers -= 1
                self._changed.notify_all()

    def _retract(self) -> None:
        """Send every running request back to the queue, before those that wait."""
        while self._running:
            self._requeue_last()

    def _requeue_last(self) -> None:
        last = self._running.pop()
        self._cache.close(last.sequence)
        self._waiting.appendleft(last)

    def _drop_ended(self) -> None:
        for request in self._running:
            if request.finish is not None:
                self._cache.close(request.sequence)
        self._running = [request for request in self._running if request.finish is None]
        self._waiting = deque(request for request in self._waiting if request.finish is None)

    @torch.inference_mode()
    def _generate(self) -> None:
        """Compute until `stop`. An error ends the thread."""
        try:
            while True:
                with self._changed:
                    while not self._stopping and (self._parkers or not (self._running or self._waiting)):
                        self._parked = True
                        self._changed.notify_all()
                        self._changed.wait()
                    self._parked = False
                    if self._stopping:
                        return
                    self._drop_ended()
                    self._begin_waiting()
                    self._plan()
                for adapter in dict.fromkeys(request.adapter for request in self._running):
                    self._forward([r for r in self._running if r.new_tokens and r.adapter == adapter], adapter)
        finally:
            with self._changed:
                self._parked = True
                self._changed.notify_all()

    def _begin_waiting(self) -> None:
        """Start requests that wait, as long as the cache has room for their tokens and a page more for each that runs."""
        while self._waiting and len(self._running) < MAX_RUNNING:
            request = self._waiting[0]
            tokens = request.input_ids + request.output_ids
            if self._cache.available <= len(tokens) // PAGE_TOKENS + len(self._running):
                return
            request.sequence = self._cache.open(tokens, (self._updates, request.adapter))
            if request.cached_tokens is None:
                request.cached_tokens = request.sequence.length
            self._running.append(self._waiting.popleft())

    def _plan(self) -> None:
        """Set how many tokens of each request the next forward pass computes. Where pages are lacking, the newest go back to the queue."""
        room = MAX_PROMPT_TOKENS
        for index, request in enumerate(self._running):  # which becomes shorter where pages are lacking
            sequence = request.sequence
            request.new_tokens = min(len(sequence.tokens) - sequence.length, max(room, 1))
            room -= request.new_tokens
            needed = sequence.length + request.new_tokens
            while index < len(self._running) and not self._cache.extend(sequence, needed):
                self._requeue_last()

    def _forward(self, requests: Sequence[Request], adapter: str | None) -> None:
        """Compute tokens of requests, and sample one more for each that has none left to compute."""
        self.adapters.activate(adapter)
        # Those that can be attended to in one call stand side by side.
        requests = sorted(requests, key=lambda request: (request.new_tokens, -len(request.sequence.pages)))
        logits = compute(self.model, self._cache, [(request.sequence, request.new_tokens) for request in requests])
        rows = [row for row, one in enumerate(requests) if one.sequence.length == len(one.sequence.tokens)]
        if not rows:  # parts of long prompts alone
            return
        if len(rows) < len(requests):
            requests, logits = [requests[row] for row in rows], logits[rows]
        tokens, logprobs = draw(logits, [r.sampling for r in requests], [r.output_ids for r in requests])
        drawn = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
        with self._changed:
            for request, token, logprob, distribution in zip(requests, tokens.tolist(), drawn, logprobs, strict=True):
                if request.finish is None:
                    request.append(token, logprob, distribution, self.version)
                    request.finish = request.finish_reason(self._decode)
                    request.sequence.tokens.append(token)
        for request in requests:
            if request.reports:
                request.on_change()

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))
