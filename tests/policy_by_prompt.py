"""An engine whose replies a function decides from the text of the prompt: for agents that must get somewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.lowlevel

from agentrl.engine.protocol import OnProgress, Sampling
from agentrl.proxy import ChatFormat
from agentrl.record.tokens import Generation
from tests.modelless_engine import ModellessEngine


class PolicyByPrompt(ModellessEngine):
    """It remembers what it was sent and what it returned."""

    def __init__(self, chat_format: ChatFormat, reply: Callable[[str], str], *, has_grammar: bool = False) -> None:
        self._format = chat_format
        self.reply = reply
        self.has_grammar = has_grammar
        self.calls: list[tuple[list[int], Generation]] = []

    async def answer(
        self, input_ids: list[int], sampling: Sampling, session: str, on_progress: OnProgress, *_: Any
    ) -> Generation:
        said = self.reply(self._format.decode(input_ids)) + "<|im_end|>"
        ids = self._format.tokenizer.encode(said, add_special_tokens=False)
        if sampling.stop:
            ids = ids[: self._format.tokens_to_stop(ids, sampling.stop)]
        for end in range(1, len(ids)):
            on_progress(ids[:end])
            await anyio.lowlevel.checkpoint()
        generation = self.generation(ids)
        self.calls.append((list(input_ids), generation))
        return generation
