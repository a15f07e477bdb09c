"""Which conversations of an episode are trained on: `rollout.trajectories`, and `episode.trajectories` of a workflow.

    the record's turns ─► conversations ─► trajectories ─► trained on, under which role, or left out

A choice is made once, when the episode has ended, and is part of its record: what is trained again, or goes on after a restart, is
what was chosen then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agentrl.errors import AgentRLError, ConfigError, EpisodeError, one_line
from agentrl.record.conversations import Conversation, are_main, conversations_of, rerendered_tokens
from agentrl.record.trajectory import TokenRecord
from agentrl.system.failure_text import shown
from agentrl.system.imports import load_object

ChooseConversation = Callable[[Conversation], bool | str]
"""Says of a conversation whether it is trained on, or under which role."""
Trajectories = Literal["main", "all"] | ChooseConversation


@dataclass(frozen=True)
class ConversationChoices:
    """The choice for each conversation of an episode."""

    chosen: Sequence[tuple[Conversation, bool | str]] = ()
    rerendered_tokens: int = 0
    """Tokens of their first prompts that an earlier turn already held."""

    def apply(self, role_rewards: Mapping[str, float]) -> None:
        """Write them into the turns, and give roles that these have now the rewards that the workflow gave them."""
        for conversation, choice in self.chosen:
            for turn in conversation.turns:
                turn.left_out = choice is False
                if isinstance(choice, str) and turn.role == conversation.role:
                    turn.role = choice
                    turn.role_reward = role_rewards.get(choice, turn.role_reward)


def choose_conversations(record: TokenRecord, trajectories: object) -> ConversationChoices:
    """Find the conversations of an episode, and choose those that are trained on. It changes nothing.

    Args:
        record: Its turns.
        trajectories: "main", "all" or a function; of a workflow, and so perhaps anything.

    Returns:
        The choices.

    Raises:
        EpisodeError: `trajectories` is none of these, or chooses neither yes or no nor a role.
    """
    turns = list(record.turns)
    conversations = conversations_of(turns)
    if trajectories == "main":
        chosen: list[tuple[Conversation, bool | str]] = [*zip(conversations, are_main(conversations), strict=True)]
    elif trajectories == "all":
        chosen = [(one, True) for one in conversations]
    elif callable(trajectories):
        chosen = [(one, _checked(trajectories(one))) for one in conversations]
    else:
        raise EpisodeError(
            f'episode.trajectories is {shown(trajectories)}; set it to "main", "all" or a function of one conversation'
        )
    return ConversationChoices(chosen, rerendered_tokens(turns))


def _checked(choice: object) -> bool | str:
    if isinstance(choice, bool):
        return choice
    if isinstance(choice, str) and choice.replace("-", "_").isidentifier():
        return choice
    if inspect.iscoroutine(choice):
        choice.close()
    raise EpisodeError(
        f"trajectories returned {shown(choice)} for a conversation; return True, False, or a role: a word of letters, digits, - and _"
    )


@lru_cache
def load_trajectories(name: str) -> Trajectories:
    """Return what `rollout.trajectories` says.

    Raises:
        ConfigError: There is no such function.
    """
    if name in ("main", "all"):
        return name  # type: ignore[return-value]
    try:
        found = load_object(name)
    except (AgentRLError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"rollout.trajectories = {name!r} cannot be loaded: {one_line(error)}; name a function as FILE_OR_MODULE:NAME"
        ) from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"rollout.trajectories = {name!r} is no plain function; write `def choose(conversation) -> bool | str`"
        )
    return found  # type: ignore[no-any-return]
