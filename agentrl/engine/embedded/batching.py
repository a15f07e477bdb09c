"""Interruptible generation: replies in a batch that changes with every forward pass.

    submit ─► waiting ─► running ─► one forward pass over the next tokens of all ─► sample ─► Request.output_ids
                 ▲          │
                 └──────────┘ retracted by a pause, or where the cache is full: prompt and reply are computed anew

All state is the event loop's. A thread computes a forward pass, or loads weights, while `_passes` is held: one of these at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
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
from agentrl.system.tasks import Condition, in_thread

MAX_RUNNING = 256
"""Replies that grow at the same time."""
MAX_PROMPT_TOKENS = 2048
"""Tokens of prompts in one forward pass, beside one of each reply that grows."""


class BatchingEngine:
    """A model with its cache, the version of its weights, and the replies that it makes while `run` runs."""

    def __init__(self, model_path: Path, *, max_total_tokens: int = 65_536) -> None:
        """Load the model of a directory."""
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
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
        self._prepared: dict[Path, dict[str, torch.Tensor]] = {}
        """Directory → its weights, read before the pause that they are for; one at most."""
        self._updates = 0
        """How often the weights changed: what one of them computed is no prefix for another."""
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._changed = Condition()
        self._passes = anyio.Lock()
        """Held from before a forward pass, or a change of weights, to its end."""
        self._pause_mode: PauseMode | None = None

    def open_requests(self) -> list[Request]:
        """Return those that have not ended."""
        return [request for request in (*self._running, *self._waiting) if request.finish is None]

    def submit(self, request: Request) -> None:
        """Queue a request; it starts with the next forward pass, or after a pause."""
        self._waiting.append(request)
        self._changed.notify_all()

    def abort(self, request: Request) -> None:
        """End a request with what it has; it finishes as SGLang's `abort`."""
        if request.finish is None:
            request.finish = {"type": "abort", "message": "Abort in waiting queue or while running"}
        request.on_change()

    async def pause(self, mode: PauseMode) -> None:
        """Begin no more forward passes, and wait for the last; see `PauseMode` for what happens to open requests."""
        self._pause_mode = mode
        async with self._passes:
            if mode == "abort":
                for request in self.open_requests():
                    self.abort(request)
            elif mode == "retract":
                self._retract()

    async def resume(self) -> None:
        """Go on."""
        self._pause_mode = None
        self._changed.notify_all()

    async def prepare_weights(self, directory: Path) -> None:
        """Read the safetensors of `directory` while replies grow, for `load_weights` to take; it holds them once, beside the model.

        Raises:
            ValueError: They do not fit.
        """
        self._prepared.clear()
        self._prepared[directory] = await in_thread(self._read, directory)

    async def load_weights(self, directory: Path, version: str | None, *, flush_cache: bool) -> None:
        """Put the safetensors of `directory` into the model, between two forward passes or in a pause.

        Args:
            directory: A checkpoint's.
            version: What to call the weights from now on; None: as before.
            flush_cache: Whether replies that go on compute their cache anew.

        Raises:
            ValueError: They do not fit, or the cache of open requests cannot be flushed in this pause. Nothing has changed then.
        """
        if flush_cache and self._pause_mode == "in_place" and self.open_requests():
            raise ValueError("flush_cache must be false in pause mode in_place: open requests keep their KV cache")
        if directory not in self._prepared:
            await self.prepare_weights(directory)
        tensors = self._prepared.pop(directory)
        async with self._passes:
            for name, parameter in self._parameters().items():
                parameter.data = tensors[name]
            if version is not None:
                self.version = version
            self._updates += 1
            if flush_cache:
                self._retract()
            self._drop_ended()
            if not self._running:
                # Broken weights may have left numbers that are not finite, which spoil what is read beside them.
                self._cache = PagedCache(self._pages)

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name_in_base(n): p for n, p in self.model.named_parameters() if not is_adapter_parameter(n)}

    def _read(self, directory: Path) -> dict[str, torch.Tensor]:
        """Return tensors for the model's parameters, in memory of their own: the files may go.

        Raises:
            ValueError: They do not fit.
        """
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{directory} holds no safetensors, or is not there")
        tensors = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
        parameters = self._parameters()
        check_fit(parameters, tensors, directory)
        return {name: tensors[name].to(parameter.dtype, copy=True) for name, parameter in parameters.items()}

    async def change_adapters(self, change: Callable[[LoadedAdapters], None]) -> None:
        """Load or unload LoRA adapters between two forward passes. Open requests of one that goes are aborted."""
        async with self._passes:
            await in_thread(change, self.adapters)
            for request in self.open_requests():
                if request.adapter not in (None, *self.adapters.in_model):
                    self.abort(request)

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

    async def run(self) -> None:
        """Make replies until cancelled."""
        while True:
            await self._changed.wait_for(lambda: self._pause_mode is None and bool(self._running or self._waiting))
            async with self._passes:
                if self._pause_mode is not None:
                    continue
                self._drop_ended()
                self._begin_waiting()
                self._plan()
                for adapter in dict.fromkeys(request.adapter for request in self._running):
                    await self._forward([r for r in self._running if r.adapter == adapter], adapter)

    def _begin_waiting(self) -> None:
        """Start requests that wait, as long as the cache has room for their tokens and a page more for each that runs."""
        while self._waiting and len(self._running) < MAX_RUNNING:
            request = self._waiting[0]
            tokens = request.input_ids + request.output_ids
            if self._cache.available <= len(tokens) // PAGE_TOKENS + len(self._running):
                return
            request.sequence = self._cache.open(tokens, (self._updates, self.adapters.in_model.get(request.adapter)))
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

    async def _forward(self, requests: Sequence[Request], adapter: str | None) -> None:
        """Compute tokens of requests, and sample one more for each that has none left to compute."""
        # Those that can be attended to in one call stand side by side.
        requests = sorted(requests, key=lambda request: (request.new_tokens, -len(request.sequence.pages)))
        for request, token, logprob, distribution in await in_thread(self._draw, requests, adapter):
            if request.finish is None:
                request.append(token, logprob, distribution, self.version)
                request.finish = request.finish_reason(lambda ids: str(self.tokenizer.decode(ids)))
                request.sequence.tokens.append(token)
                if request.reports:
                    request.on_change()

    @torch.inference_mode()
    def _draw(self, requests: Sequence[Request], adapter: str | None) -> list[tuple[Request, int, float, torch.Tensor]]:
        """Return the token of each request that gets one, its logprob, and the logprobs [V] that it was drawn from."""
        self.adapters.activate(adapter)
        logits = compute(self.model, self._cache, [(request.sequence, request.new_tokens) for request in requests])
        rows = [row for row, one in enumerate(requests) if one.sequence.length == len(one.sequence.tokens)]
        if not rows:  # parts of long prompts alone
            return []
        if len(rows) < len(requests):
            requests, logits = [requests[row] for row in rows], logits[rows]
        tokens, logprobs = draw(logits, [r.sampling for r in requests], [r.output_ids for r in requests])
        drawn = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        return list(zip(requests, tokens.tolist(), drawn.tolist(), logprobs, strict=True))
