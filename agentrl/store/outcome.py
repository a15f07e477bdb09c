"""The outcome of an attempt at an episode, as its runner gives it to the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord
from agentrl.system.failure_text import storable


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one episode. `error` is the traceback of a failed one: valid UTF-8, and bounded."""

    reason: EndReason
    """How it ended: FINISHED, or the reason for its failure."""
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    details: str | None = None
    """Those of its reward, as JSON in ASCII; None: it has none."""
    error: str | None = None
    record: TokenRecord = field(default_factory=TokenRecord)
    started_at: float = 0.0
    duration_s: float = 0.0
    replayed_tokens: int = 0
    """Tokens that came from the call log of an earlier start of the run."""
    conversations: int = 0
    """Conversations that its calls are of: `agentrl.record.conversations`."""
    rerendered_tokens: int = 0
    """Tokens of the prompts that these began with which an earlier turn of the episode already held."""

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "error", storable(self.error))

    @property
    def finished(self) -> bool:
        """Whether it has a reward, and is no failure."""
        return self.reason == EndReason.FINISHED

    @property
    def has_turn_rewards(self) -> bool:
        """Whether single calls or roles have rewards of their own: equal episode rewards then say little."""
        return self.record.figures().has_turn_rewards
