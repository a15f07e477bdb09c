"""An engine whose replies a function decides from the text of the prompt: for agents that must get somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.lowlevel

from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.proxy import ChatFormat
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan


class PolicyByPrompt:
    """It is `agentrl.engine.Engine`, and remembers what it was sent and what it returned."""

    version = 0
    takes_images = False
    vocabulary = None

    def __init__(self, chat_format: ChatFormat, reply: Callable[[str], str], *, has_grammar: bool = False) -> None:
        self._format = chat_format
        self.reply = reply
        self.has_grammar = has_grammar
        self.calls: list[tuple[list[int], Generation]] = []

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
        said = self.reply(self._format.decode(input_ids)) + "<|im_end|>"
        ids = self._format.tokenizer.encode(said, add_special_tokens=False)
        for end in range(1, len(ids)):
            if on_progress is not None:
                on_progress(ids[:end])
            await anyio.lowlevel.checkpoint()
        spans = [VersionSpan(0, 0, len(ids))]
        generation = Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")
        self.calls.append((list(input_ids), generation))
        return generation

    def end_session(self, session: str) -> None: ...

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        return 0.0

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...
