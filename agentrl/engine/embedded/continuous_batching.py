"""Interruptible generation on transformers' continuous batching.

    submit ─► manager's queue ─► scheduler ─► model forward ─► RequestSampler ─► Request.output_ids
                                    ▲                               │
              control thread ───────┘ pauses the loop between two   └─► finished: the owner is told
                                      forwards, changes weights

Continuous batching schedules, pages the KV cache and runs the model; sampling is ours (`request_sampler`). Only the generation
thread appends tokens, and weights and versions change only while that thread is parked.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessorList,
)
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from agentrl.engine.adapter import (
    check_fit,
    is_adapter_parameter,
    name_in_base,
    read_adapter,
    read_adapter_config,
    read_tensors,
)
from agentrl.engine.embedded.request_sampler import Request, RequestSampler
from agentrl.engine.embedded.varlen_attention import use_varlen_attention
from agentrl.engine.model_facts import end_ids
from agentrl.engine.protocol import PauseMode

PAGE_TOKENS = 16
"""KV-cache page: prompts share whole pages, so a small page shares more of a multi-turn prefix."""


def _shape(config: Any) -> tuple[Any, ...]:
    """All of an adapter's configuration that says how its tensors act."""
    about = {"base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
    return tuple((key, str(value)) for key, value in sorted(config.to_dict().items()) if key not in about)


def load_model(model_path: Path, dtype: str = "float32") -> Any:
    """Return the model in a directory."""
    return AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
    )


class BatchingEngine:
    """A model with its continuous-batching loop, sampler and weight version.

    `submit` and `abort` may be called from any thread, all others from one: transformers counts pauses by thread, and weights do
    not change while something is scored.
    """

    def __init__(self, model_path: Path, *, max_total_tokens: int = 65_536, model: Any = None) -> None:
        """Make the loop. `model`: what it computes with; by default that of `model_path`, whose tokenizer it has."""
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = load_model(model_path) if model is None else model
        use_varlen_attention(self.model)
        config = self.model.config.get_text_config()
        # A sequence that the whole cache cannot hold would end the generation loop.
        self.context_length: int = min(config.max_position_embeddings, max_total_tokens - PAGE_TOKENS)
        self.vocabulary: int = config.vocab_size
        self.end_ids = end_ids(model_path, self.model.config, self.tokenizer)
        self._manager: Any = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=self.context_length),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=-(-max_total_tokens // PAGE_TOKENS),
                max_batch_tokens=2048,
                use_cuda_graph=False,
                use_async_batching=False,
                auto_switch_to_flash=False,
                max_blocks_per_request=0,
            ),
        )
        self._lock = threading.RLock()
        self._sampler = RequestSampler(self._lock, self._finished, lambda ids: str(self.tokenizer.decode(ids)))
        self._manager.logit_processor = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self._sampler]))
        self._manager.logit_processor.tensors_required = 1
        self._slots = itertools.count()
        self._pause: AbstractContextManager[None] | None = None
        self._pause_mode: PauseMode | None = None
        self._shares_prefixes = False
        self.adapter: str | None = None
        """Name of the LoRA adapter that every token is computed with; "": it is being changed, and no request may begin."""

    @property
    def version(self) -> str:
        """The version of the weights in use."""
        return self._sampler.version

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._sampler.requests)

    @property
    def alive(self) -> bool:
        """Whether the generation loop runs."""
        return bool(self._manager.is_running())

    @property
    def paused(self) -> bool:
        """Whether the generation loop is parked."""
        return self._pause is not None

    def start(self) -> None:
        """Start the generation loop and wait until it can be paused."""
        self._manager.start()
        with self._manager.pause():
            self._shares_prefixes = self._manager.batch_processor.cache.use_prefix_sharing

    def stop(self) -> None:
        """End the generation loop; requests in flight are dropped."""
        if self._pause is not None:
            self.resume()
        self._manager.stop(block=True, timeout=10, hard_stop=True)

    def submit(self, request: Request) -> None:
        """Queue a request; it starts with the next forward pass, or after a pause."""
        # Continuous batching keeps a copy of every reply for a reader of its own; here `Request` is what is read.
        while self._manager.get_result(timeout=0) is not None:
            pass
        with self._lock:
            request.slot = next(self._slots)
            self._sampler.requests[request.slot] = request
            self._enqueue(request)

    def abort(self, request: Request) -> None:
        """End a request with what it has; it finishes as SGLang's `abort`."""
        with self._lock:
            if request.finish is None and self._sampler.requests.pop(request.slot, None) is not None:
                request.finish = {"type": "abort", "message": "Abort in waiting queue or while running"}
                self._manager.cancel_request(request.batching_id)
        request.on_change()

    def pause(self, mode: PauseMode) -> None:
        """Park the generation loop between two forward passes; see `PauseMode` for what happens to open requests."""
        if self._pause is None:
            self._pause = self._manager.pause()
            self._pause.__enter__()
        self._pause_mode = mode
        if mode == "abort":
            for request in list(self._sampler.requests.values()):
                self.abort(request)
            self._drop_all()
        elif mode == "retract":
            self._retract()

    def resume(self) -> None:
        """Let the generation loop go on."""
        if self._pause is not None:
            pause, self._pause, self._pause_mode = self._pause, None, None
            pause.__exit__(None, None, None)

    def load_weights(self, directory: Path, version: str | None, *, flush_cache: bool) -> None:
        """Copy the safetensors of `directory` into the model.

        Outside a pause it takes one for its duration: `retract` if the cache is to be flushed, else `in_place`.

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
        if flush_cache and self._pause_mode == "in_place" and self.running:
            raise ValueError("flush_cache must be false in pause mode in_place: open requests keep their KV cache")
        own_pause = self._pause is None
        if own_pause:
            self.pause("retract" if flush_cache else "in_place")
        try:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(tensors[name])
            if version is not None:
                self._sampler.version = version
            cache = self._manager.batch_processor.cache
            cache.evict_cached_blocks()
            # Replies that stay open in mode `in_place` go on with blocks of the old weights: later ones must not find these.
            cache.use_prefix_sharing = cache.allow_block_sharing = self._shares_prefixes and flush_cache
        finally:
            if own_pause:
                self.resume()

    @torch.no_grad()
    def score(self, input_ids: list[int]) -> list[float | None]:
        """[T] log softmax(logits) of each token given those before it; None for the first."""
        ids = torch.tensor(input_ids)
        logits = self.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, :-1].float()
        scored = torch.log_softmax(logits, dim=-1).gather(1, ids[1:].unsqueeze(1)).squeeze(1)
        return [None, *scored.tolist()]

    def load_adapter(self, name: str, directory: Path) -> None:
        """Compute with the LoRA adapter in `directory` from now on, in place of one that is there. Open requests are aborted.

        Raises:
            ValueError: It is no LoRA adapter, or does not fit the model, which then has no adapter.
            OSError: There is none, and the one that was there stays.
        """
        config, tensors = read_adapter_config(directory), read_adapter(directory)
        with self._changing_adapter():
            present = getattr(self.model, "peft_config", {}).get("default")
            if present is None or _shape(present) != _shape(config):
                if present is not None:
                    self.model.delete_adapter("default")
                self.model.add_adapter(config)
            parameters = {name: p for name, p in self.model.named_parameters() if is_adapter_parameter(name)}
            check_fit(parameters, tensors, directory)
            with torch.no_grad():
                for key, parameter in parameters.items():
                    parameter.copy_(tensors[key])
            self.model.enable_adapters()
            self.adapter = name

    def unload_adapter(self) -> None:
        """Compute with the model as it is again. Open requests are aborted."""
        with self._changing_adapter():
            pass

    @contextmanager
    def _changing_adapter(self) -> Iterator[None]:
        """Hold generation stopped, with no request and no cached prefix left, and the adapter off; it stays off unless one is put on."""
        own_pause = self._pause is None
        before = self._pause_mode
        self.adapter = (
            ""  # before open requests are aborted: one that comes after these names another adapter, and is aborted too
        )
        self.pause("abort")
        try:
            if hasattr(self.model, "peft_config"):
                self.model.disable_adapters()
            try:
                yield
            finally:
                if not self.adapter:
                    self.adapter = None
                    if hasattr(self.model, "peft_config"):
                        self.model.disable_adapters()
        finally:
            self._pause_mode = before
            if own_pause:
                self.resume()

    def _enqueue(self, request: Request) -> None:
        request.batching_id = f"{request.slot}.{len(request.output_ids)}"
        self._manager.add_request(
            request.input_ids + request.output_ids,
            request_id=request.batching_id,
            max_new_tokens=request.sampling.max_new_tokens - len(request.output_ids),
            eos_token_id=list(request.sampling.stop_token_ids) or -1,
            slot=request.slot,
        )

    def _finished(self, request: Request) -> None:
        self._sampler.requests.pop(request.slot, None)
        if request.finish is not None and isinstance(request.finish.get("matched"), str):
            # Continuous batching ends a request at its stop tokens and its length by itself, not at a string.
            self._manager.cancel_request(request.batching_id)
        request.on_change()

    def _retract(self) -> None:
        """Send every open request back to the queue as prompt + output, with no KV cache to reuse."""
        with self._lock:
            dropped = self._drop_all()
            for request in list(self._sampler.requests.values()):
                # The others are still on their way to the scheduler: they hold no cache, and arrive there by themselves.
                if request.batching_id in dropped:
                    self._enqueue(request)

    def _drop_all(self) -> set[str]:
        """Empty the scheduler and forget all cached prefixes, while the loop is parked. Returns what it held.

        That includes requests which ended, but whose cancellation the loop has not seen yet: freed later, their blocks
        would come back as prefixes that the old weights computed.
        """
        processor = self._manager.batch_processor
        scheduler = processor.scheduler
        held = scheduler.active_requests.keys() | scheduler.waiting_requests.keys()
        for batching_id in held:
            scheduler.set_request_cancellation(batching_id)
        scheduler.clear_cancelled_requests()
        processor.cache.evict_cached_blocks()
        return held
