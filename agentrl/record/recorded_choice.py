"""A reply of the engine as it is kept: by the proxy that asked for it, and by the store, which the trainer reads without a proxy."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.record.tokens import Generation


@dataclass(frozen=True)
class RecordedChoice:
    """One whole reply to one request."""

    request: str
    """Digest of the request."""
    completion_id: str
    choice_index: int
    """Which of the request's `n` replies."""
    tool_call_ids: list[str]
    """Ids of its tool calls."""
    generation: Generation
