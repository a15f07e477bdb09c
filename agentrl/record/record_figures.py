"""The figures of a token record that a run looks at when an episode ends: few, also of a long record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.record.trajectory import Turn

EXAMPLE_TOKENS = 200
"""Tokens of a reply that is shown as an example."""


@dataclass(frozen=True, kw_only=True)
class RecordFigures:
    """Sums over the turns of one token record."""

    replies: int = 0
    truncated: int = 0
    """Replies that were cut off for their length."""
    with_tools: int = 0
    """Replies to requests that offered tools."""
    tool_calls: int = 0
    """Replies that call a tool."""
    failed_calls: int = 0
    """Replies to requests that offered tools which the workflow marked as failed: those whose tool call could not be carried out."""
    altered_by: list[str] = field(default_factory=list)
    """By reply, of a role that is trained on, that was sampled otherwise than the policy samples: the fields that asked for it."""
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
    without_call = [turn for turn in turns if turn.tools and not turn.tool_call_ids]
    return RecordFigures(
        replies=len(turns),
        truncated=sum(turn.truncated for turn in turns),
        with_tools=sum(turn.tools for turn in turns),
        tool_calls=sum(bool(turn.tool_call_ids) for turn in turns),
        failed_calls=sum(turn.failed for turn in turns if turn.tools),
        altered_by=[", ".join(turn.alterations) for turn in turns if turn.trained and turn.alterations],
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
        sampled_tokens=sum(len(turn.output_ids) for turn in turns),
        interrupted_tokens=sum(len(turn.output_ids) for turn in turns if len(turn.versions) > 1),
        left_out_tokens=sum(len(turn.output_ids) for turn in turns if turn.left_out),
        has_turn_rewards=any(turn.reward is not None or turn.role_reward is not None for turn in turns),
        example=without_call[-1].output_ids[:EXAMPLE_TOKENS] if without_call else [],
    )
