"""An engine without a model, in the test's own process: the base of those that tests run agents, workflows and runs on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.engine.protocol import OnProgress, PauseMode, Sampling
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan

LOGPROB = -0.5
"""Of every token."""


class ModellessEngine:
    """It is `agentrl.engine.UpdatableEngine`; the `answer` of a subclass says what it replies."""

    version: int = 0
    has_grammar: bool = False
    takes_images: bool = False
    vocabulary: int | None = None
    context_length: int | None = None

    async def answer(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress,
        images: Sequence[ImageSpan],
    ) -> Generation:
        raise NotImplementedError

    def generation(self, ids: Sequence[int]) -> Generation:
        """The reply `ids`, which ended by itself."""
        spans = [VersionSpan(self.version, 0, len(ids))]
        return Generation(output_ids=list(ids), logprobs=[LOGPROB] * len(ids), versions=spans, finish="stop")

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        adapter: str = "",
    ) -> Generation:
        return await self.answer(input_ids, sampling, session, on_progress or (lambda ids: None), images)

    def end_session(self, session: str) -> None: ...

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        self.version = version
        return 0.0

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...
