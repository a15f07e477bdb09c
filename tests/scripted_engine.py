"""An engine in the test's own process that says the same thing at once: for what workflows do, whatever is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel

from agentrl.engine.protocol import Sampling
from agentrl.record.tokens import Generation
from tests.modelless_engine import ModellessEngine


@dataclass
class ScriptedEngine(ModellessEngine):
    """Every reply is `reply`."""

    reply: Sequence[int] = (11, 12, 13)
    version: int = 0
    has_grammar: bool = False
    takes_images: bool = False
    vocabulary: int | None = None
    context_length: int | None = None
    calls: int = 0

    async def answer(self, input_ids: list[int], sampling: Sampling, *_: Any) -> Generation:
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        return self.generation(self.reply[: sampling.max_new_tokens])
