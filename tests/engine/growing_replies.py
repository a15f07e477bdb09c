"""A window on replies that have not ended, as the client has them: what it would go on from if their server were lost now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from agentrl.engine.client import server
from agentrl.engine.client.server import SGLangServer
from agentrl.engine.client.stream import GrowingReply
from agentrl.record.tokens import Generation

Growing = list[tuple[list[int], GrowingReply]]
"""[request to a server] (what it was sent, the reply)."""


@contextmanager
def growing_replies() -> Iterator[Growing]:
    """All that clients in this process ask of servers within the context."""
    sent: ContextVar[list[int]] = ContextVar("sent")
    found: Growing = []
    asks = SGLangServer.generate

    class Watched(GrowingReply):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            found.append((sent.get(), self))

    async def generate(self: SGLangServer, input_ids: list[int], *args: Any, **options: Any) -> Generation:
        sent.set(input_ids)
        return await asks(self, input_ids, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "GrowingReply", Watched)
        patched.setattr(SGLangServer, "generate", generate)
        yield found
