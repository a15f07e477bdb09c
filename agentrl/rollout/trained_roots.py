"""Which conversations of an episode are trained on: `rollout.trajectories`, and `episode.trajectories` of a workflow.

    the session's turns and texts ─► roots, each with what it is ─► trajectories ─► trained on, under which role, or left out

A choice is made once, when the episode has ended, and is part of its record: what is trained again, or goes on after a restart, is
what was chosen then.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agentrl.errors import AgentRLError, ConfigError, EpisodeError, one_line
from agentrl.record.roots import Root, TurnText, rerendered_tokens, roots_of
from agentrl.record.trajectory import TokenRecord
from agentrl.system.failure_text import shown
from agentrl.system.imports import load_object

ChooseRoot = Callable[[Root], bool | str]
"""Says of a root whether it is trained on, or under which role."""
Trajectories = Literal["main", "all"] | ChooseRoot


@dataclass(frozen=True)
class RootChoices:
    """The choice for each root of an episode."""

    chosen: Sequence[tuple[Root, bool | str]] = ()
    rerendered_tokens: int = 0
    """Prompt tokens of roots that an earlier turn already held."""

    def apply(self, record: TokenRecord, role_rewards: Mapping[str, float]) -> None:
        """Write them into the record, and give roles that it has now the rewards that the workflow gave them."""
        for root, choice in self.chosen:
            for turn in root.turns:
                turn.root_kind, turn.left_out = root.kind, choice is False
                if isinstance(choice, str) and turn.role == root.role and choice != root.role:
                    turn.role = choice
                    turn.role_reward = role_rewards.get(choice, turn.role_reward)

    def counts(self) -> dict[str, int]:
        """Return how many roots there are of each kind."""
        return dict(Counter(root.kind for root, _ in self.chosen))


def choose_roots(record: TokenRecord, texts: Sequence[TurnText], trajectories: object) -> RootChoices:
    """Find the roots of an episode, and choose those that are trained on. It changes nothing.

    Args:
        record: Its turns.
        texts: [turn] the texts of each turn.
        trajectories: "main", "all" or a function; of a workflow, and so perhaps anything.

    Returns:
        The choices.

    Raises:
        EpisodeError: `trajectories` is none of these, or chooses neither yes or no nor a role.
    """
    if trajectories not in ("main", "all") and not callable(trajectories):
        raise EpisodeError(
            f'episode.trajectories is {shown(trajectories)}; set it to "main", "all" or a function of one root'
        )
    turns = list(record.turns)
    chosen = [(root, _choice(root, trajectories)) for root in roots_of(turns, texts)]
    return RootChoices(chosen, rerendered_tokens(turns))


def _choice(root: Root, trajectories: object) -> bool | str:
    if trajectories == "all":
        return True
    if not callable(trajectories):
        return False if root.kind == "side_call" else root.name or True
    choice = trajectories(root)
    if isinstance(choice, bool):
        return choice
    if isinstance(choice, str) and choice.replace("-", "_").isidentifier():
        return choice
    if inspect.iscoroutine(choice):
        choice.close()
    raise EpisodeError(
        f"trajectories returned {shown(choice)} for a root; return True, False, or a role: a word of letters, digits, - and _"
    )


@lru_cache
def load_trajectories(name: str) -> Trajectories:
    """Return what `rollout.trajectories` says.

    Raises:
        ConfigError: There is no such function.
    """
    if name == "main":
        return "main"
    if name == "all":
        return "all"
    try:
        found = load_object(name)
    except (AgentRLError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"rollout.trajectories = {name!r} cannot be loaded: {one_line(error)}; name a function as FILE_OR_MODULE:NAME"
        ) from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"rollout.trajectories = {name!r} is no plain function; write `def choose(root) -> bool | str`"
        )
    return found  # type: ignore[no-any-return]
