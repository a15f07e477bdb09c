"""The figures of a token record that a run looks at when an episode ends: few, whatever the record's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.record.trajectory import Turn

EXAMPLE_TOKENS = 200
"""Tokens of a reply that is shown as an example."""

Reply = tuple[bool, bool, bool, list[str]]
"""(truncated, tools were offered, a tool was called, fields of a role that is trained on by which it was sampled otherwise than the policy)"""


@dataclass(frozen=True, kw_only=True)
class RecordFigures:
    """Sums over the turns of one token record."""

    replies: list[Reply] = field(default_factory=list)
    """By turn."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    interrupted_tokens: int = 0
    """Sampled tokens of replies that a weight update interrupted."""
    left_out_tokens: int = 0
    """Sampled tokens of conversations that are not trained on."""
    has_turn_rewards: bool = False
    """Whether single calls or roles have rewards of their own."""
    example: list[int] = field(default_factory=list)
    """The beginning of the last reply that could call a tool and calls none."""


def figures_of(turns: Sequence[Turn]) -> RecordFigures:
    """Return the figures of a record's turns."""
    lengths = [len(turn.output_ids) for turn in turns]
    without_call = [turn for turn in turns if turn.tools and not turn.tool_call_ids]
    return RecordFigures(
        replies=[
            (turn.truncated, turn.tools, bool(turn.tool_call_ids), list(turn.alterations) if turn.trained else [])
            for turn in turns
        ],
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
        sampled_tokens=sum(lengths),
        interrupted_tokens=sum(n for n, turn in zip(lengths, turns, strict=True) if len(turn.versions) > 1),
        left_out_tokens=sum(n for n, turn in zip(lengths, turns, strict=True) if turn.left_out),
        has_turn_rewards=any(turn.reward is not None or turn.role_reward is not None for turn in turns),
        example=without_call[-1].output_ids[:EXAMPLE_TOKENS] if without_call else [],
    )
