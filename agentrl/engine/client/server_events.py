"""The events that a server streams: cut out of its bytes, and read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pydantic_core

from agentrl.engine.client.growing_reply import GrowingReply
from agentrl.engine.client.server_errors import BadReplyError


async def events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the JSON of server-sent events, however long."""
    pieces: list[bytes] = []
    async for data in content.iter_any():
        *complete, rest = data.split(b"\n\n")
        for end in complete:
            event = b"".join([*pieces, end])
            pieces = []
            if event.startswith(b"data: ") and event != b"data: [DONE]":
                yield event[6:]
        pieces.append(rest)


def from_json(event: bytes, url: str, reply: GrowingReply) -> Any:
    """Read an event of a reply from the server at `url`.

    Raises:
        BadReplyError: It is no JSON; with what the reply has.
    """
    try:
        return pydantic_core.from_json(event)
    except ValueError as error:
        raise BadReplyError(f"{url} sent {event[:200]!r}, which is not JSON", reply.so_far()) from error
