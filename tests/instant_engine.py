"""An engine that answers at once, without a model: for what happens before and after generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio

from agentrl.engine.protocol import OnProgress, PauseMode, Sampling
from agentrl.record.tokens import Generation
from tests.modelless_engine import LOGPROB, ModellessEngine

STOP = 2


class InstantEngine(ModellessEngine):
    """Says at most `tokens` ids of `reply`, and then stops. While it is paused, replies wait."""

    def __init__(self, tokens: int = 16, reply: Sequence[int] = (24, 25, 26)) -> None:
        self.tokens = tokens
        self.reply = reply
        self.in_flight = 0
        self.most_in_flight = 0
        self.order: list[str] = []
        """The session of each call, as they came."""
        self._running = anyio.Event()
        self._running.set()

    async def answer(
        self, input_ids: list[int], sampling: Sampling, session: str, on_progress: OnProgress, *_: Any
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
        on_progress(ids[: count // 2])
        ranks = range(sampling.top_logprobs)
        return replace(
            self.generation(ids), top_logprobs=[[(LOGPROB, token) for token in ranks] for _ in ids] if ranks else []
        )

    async def pause(self, mode: PauseMode) -> None:
        self._running = anyio.Event()

    async def resume(self) -> None:
        self._running.set()
