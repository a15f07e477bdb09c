"""An engine that answers at once, without a model: for what happens before and after generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan

STOP = 2


class InstantEngine:
    """Says at most `tokens` ids of `reply`, and then stops. While it is paused, replies wait."""

    version = 0
    has_grammar = False
    takes_images = False
    vocabulary = None

    def __init__(self, tokens: int = 16, reply: Sequence[int] = (24, 25, 26)) -> None:
        self.tokens = tokens
        self.reply = reply
        self.in_flight = 0
        self.most_in_flight = 0
        self.order: list[str] = []
        """The session of each call, as they came."""
        self._running = anyio.Event()
        self._running.set()

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        partial: PartialGeneration | None = None,
    ) -> Generation:
        self.order.append(session)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._running.wait()
        finally:
            self.in_flight -= 1
        count = min(self.tokens, sampling.max_new_tokens)
        ids = [self.reply[i % len(self.reply)] for i in range(count - 1)] + [STOP]
        if on_progress is not None:
            on_progress(ids[: count // 2])
        top = [[(-0.5, token) for token in range(sampling.top_logprobs)] for _ in ids] if sampling.top_logprobs else []
        return Generation(
            output_ids=ids,
            logprobs=[-0.5] * count,
            versions=[VersionSpan(0, 0, count)],
            finish="stop",
            top_logprobs=top,
        )

    def end_session(self, session: str) -> None:
        pass

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        return 0.0

    async def pause(self, mode: PauseMode) -> None:
        self._running = anyio.Event()

    async def resume(self) -> None:
        self._running.set()

    async def health(self) -> None:
        pass
