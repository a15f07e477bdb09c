"""The conversations of an episode, and which of them are the main agent's: docs/token-record.md in code.

    Turn ── parent ──► conversations_of ─► Conversation ─► rollout.trajectories: trained on, or left out
      └─── TurnText ────────┘

A conversation is a prompt that continues no turn, with all that was sampled from it on. It is known by its ids: what is asked twice in
the same words, or answered with several choices, is one conversation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentrl.record.trajectory import Turn

CHUNK_MODULUS = 16
"""A chunk ends with an id that this divides, once it has as many ids at least."""
_LABEL = re.compile(r"x-anthropic-billing-header:(?:\s*[\w-]+=[^;\s]*;)*\s*")
"""What Claude Code writes before its system prompt. It differs from conversation to conversation."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation of an episode, as a function of `rollout.trajectories` gets it."""

    role: str
    """The role that made its first call; "" where the workflow names none."""
    model: str
    """The model name that its first call asked for."""
    system: str
    """Its system prompt."""
    tools: tuple[str, ...]
    """Names of the tools that its first call offered."""
    reply: str
    """The text of its last reply."""
    turns: tuple[Turn, ...] = field(repr=False)
    """Its turns, in the order of the record."""

    @property
    def agent(self) -> tuple[str, str, bool]:
        """The agent that holds it: by model name, system prompt, and whether there are tools. Which tools may change on the way."""
        return self.model, self.system, bool(self.tools)


def conversations_of(turns: Sequence[Turn]) -> list[Conversation]:
    """Return the conversations of an episode, in the order of their first turns. Every turn is in one of them."""
    by_prompt: dict[tuple[str, tuple[int, ...]], list[Turn]] = {}
    by_turn: dict[Turn, list[Turn]] = {}
    for turn in turns:
        if turn.parent is None:
            own = by_prompt.setdefault((turn.role, tuple(turn.prompt_ids)), [])
        else:
            own = by_turn[turn.parent]
        own.append(turn)
        by_turn[turn] = own
    return [
        Conversation(
            role=own[0].role,
            model=own[0].model,
            system=own[0].text.system,
            tools=own[0].text.tools,
            reply=own[-1].text.reply,
            turns=tuple(own),
        )
        for own in by_prompt.values()
    ]


def are_main(conversations: Sequence[Conversation]) -> list[bool]:
    """Return which conversations are those of the main agent of their role, or have a turn that the workflow rewarded.

    The main agent of a role is that of its first conversation with tools; where none has tools, the agent with the most turns.
    """
    turns: dict[str, Counter[tuple[str, str, bool]]] = {}  # [role][agent]
    main: dict[str, tuple[str, str, bool]] = {}
    for one in conversations:
        turns.setdefault(one.role, Counter())[one.agent] += len(one.turns)
        if one.tools:
            main.setdefault(one.role, one.agent)
    for role, of_agents in turns.items():
        main.setdefault(role, of_agents.most_common(1)[0][0])
    return [one.agent == main[one.role] or any(turn.reward is not None for turn in one.turns) for one in conversations]


def system_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts that a conversation begins with before its first message."""
    opening = takewhile(lambda message: message["role"] == "system", messages)
    texts = [content for message in opening if isinstance(content := message["content"], str)]
    return _LABEL.sub("", "\n".join(texts))


def rerendered_tokens(turns: Sequence[Turn]) -> int:
    """Return how many tokens of the first prompts of an episode's conversations repeat what an earlier turn already held.

    Ids are cut into chunks where they say so themselves, so that what moved is found. A chunk counts where an earlier turn had it.
    """
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    if sum(turn.parent is None for turn in turns) < 2:
        return 0
    for turn in turns:
        chunks = _chunks(turn.prompt_ids if turn.parent is None else [*turn.parent.output_ids, *turn.prompt_ids])
        if turn.parent is None:
            repeated += sum(len(chunk) for chunk in chunks if chunk in seen)
        seen.update(chunks)
    return repeated


def _chunks(ids: Sequence[int]) -> list[tuple[int, ...]]:
    chunks: list[tuple[int, ...]] = []
    start = 0
    for index, token in enumerate(ids, 1):
        if token % CHUNK_MODULUS == 0 and index - start >= CHUNK_MODULUS:
            chunks.append(tuple(ids[start:index]))
            start = index
    return chunks
