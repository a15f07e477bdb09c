"""Engines over the weights of one model, each of which computes with a LoRA adapter of its own, or with none.

    lora_path of a request ─► the slot that holds the adapter of that name ─► its BatchingEngine ─┐
                                                                                                   ├─► the one model's weights
    adapter loaded ─► a free slot, or the one that was loaded longest ago ─► its BatchingEngine ──┘

Each slot has a generation loop and a KV cache: loading an adapter ends the requests of its slot alone. Slots but for their adapters
share every weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.engine.adapter import sharing_weights
from agentrl.engine.embedded.continuous_batching import BatchingEngine, load_model
from agentrl.engine.embedded.requests import RefusedError
from agentrl.engine.protocol import PauseMode


class AdapterSlots:
    """As many engines as adapters are to be loaded side by side. All methods but `engine_for` and `names` are for one thread."""

    def __init__(self, model_path: Path, *, dtype: str, max_total_tokens: int, count: int) -> None:
        """Load the model once, and put `count` engines over it, with a KV cache of `max_total_tokens` each."""
        models = sharing_weights(load_model(model_path, dtype), count)
        self.engines = [BatchingEngine(model_path, max_total_tokens=max_total_tokens, model=model) for model in models]
        self._order = list(self.engines)
        """The engines, that which was given an adapter last at the end."""
        self._known: set[str] = set()
        """Names of all adapters that were ever loaded."""

    @property
    def model(self) -> BatchingEngine:
        """An engine, to ask what is the same of all of them."""
        return self.engines[0]

    @property
    def names(self) -> list[str]:
        """Names of the adapters that are loaded."""
        return [engine.adapter for engine in self.engines if engine.adapter]

    @property
    def alive(self) -> bool:
        """Whether every generation loop runs."""
        return all(engine.alive for engine in self.engines)

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return sum(engine.running for engine in self.engines)

    def engine_for(self, name: str | None) -> BatchingEngine | None:
        """Return the engine that computes with the adapter of a name, or with none; None: the adapter is loaded no more.

        Raises:
            RefusedError: It was never loaded, or every engine computes with an adapter and the name is None.
        """
        for engine in self.engines:
            if engine.adapter == name:
                return engine
        if name in self._known:
            return None
        if loaded := ", ".join(self.names):
            raise RefusedError(
                f"This server computes with the LoRA adapter {loaded}; lora_path must name it, not {name}."
            )
        raise RefusedError(f"Got LoRA adapter that has never been loaded: {name}")

    def load_adapter(self, name: str, directory: Path) -> None:
        """Compute with an adapter for requests that name it. Open requests of the slot that it comes to are aborted.

        Raises:
            ValueError: It is loaded already, is no LoRA adapter, or does not fit the model.
            OSError: There is none, and what was there stays.
        """
        if name in self.names:
            raise ValueError(f"LoRA with name {name} already exists.")
        engine = next((one for one in self.engines if one.adapter is None), self._order[0])
        engine.load_adapter(name, directory)
        self._order.remove(engine)
        self._order.append(engine)
        self._known.add(name)

    def unload_adapter(self, name: str) -> None:
        """Free the slot of an adapter. Its open requests are aborted.

        Raises:
            ValueError: The adapter is not loaded.
        """
        for engine in self.engines:
            if engine.adapter == name:
                return engine.unload_adapter()
        raise ValueError(f"LoRA with name {name} does not exist. Loaded LoRAs: {self.names}")

    def start(self) -> None:
        """Start every generation loop."""
        for engine in self.engines:
            engine.start()

    def stop(self) -> None:
        """End every generation loop."""
        for engine in self.engines:
            engine.stop()

    def pause(self, mode: PauseMode) -> None:
        """Park every generation loop."""
        for engine in self.engines:
            engine.pause(mode)

    def resume(self) -> None:
        """Let every generation loop go on."""
        for engine in self.engines:
            engine.resume()

    def load_weights(self, directory: Path, version: str | None, *, flush_cache: bool) -> None:
        """Copy new weights into the model while no engine computes, since the weights are those of all; see `BatchingEngine.load_weights`.

        Raises:
            ValueError: They do not fit, or the caches cannot be flushed in this pause. Nothing has changed then.
        """
        with self._all_parked("retract" if flush_cache else "in_place"):
            for engine in self.engines:
                engine.load_weights(directory, version, flush_cache=flush_cache)

    @contextmanager
    def _all_parked(self, mode: PauseMode) -> Iterator[None]:
        own = [engine for engine in self.engines if not engine.paused]
        for engine in own:
            engine.pause(mode)
        try:
            yield
        finally:
            for engine in own:
                engine.resume()
