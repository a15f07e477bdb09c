"""An engine in the test's own process that says the same thing at once: for what workflows do, whatever is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.lowlevel

from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan


@dataclass
class ScriptedEngine:
    """It is `agentrl.engine.Engine`; every reply is `reply`."""

    reply: Sequence[int] = (11, 12, 13)
    version: int = 0
    has_grammar: bool = False
    takes_images: bool = False
    vocabulary: int | None = None
    calls: int = 0

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
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        ids = list(self.reply)[: sampling.max_new_tokens]
        spans = [VersionSpan(self.version, 0, len(ids))]
        return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")

    def end_session(self, session: str) -> None: ...

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        self.version = version
        return 0.0

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...
