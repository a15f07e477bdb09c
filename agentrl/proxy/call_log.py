"""The model calls of an episode, kept as they happen, so that the episode can start over without making them again.

    request ─► digest ─┬─ recorded ─► the recorded reply, at once, token for token
                       └─ new      ─► generated

A request is known by what the engine was asked: ids, images, sampling, tools and the role that asked. Equal requests get
the recorded replies in their order. What an episode does not ask again is not part of its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic_core

from agentrl.engine.protocol import Sampling
from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.tokens import ImageSpan


def request_digest(
    input_ids: RollingDigest, images: Sequence[ImageSpan], sampling: Sampling, tools: Any, role: str
) -> str:
    """Return what tells one request from another, from the digest of its ids on."""
    return input_ids.with_bytes(pydantic_core.to_json([images, vars(sampling), tools, role])).value.hex()


def digest_of_several(digests: Sequence[str]) -> str:
    """Return what tells a request of several prompts from another, from the digests of its prompts."""
    return RollingDigest().with_text("".join(digests)).value.hex()
