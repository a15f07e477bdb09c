"""From rewards to what each turn is worth: docs/credit.md in code.

A turn t has the reward r(t) that the workflow gave it; without one, a leaf earns the reward B of its role and any
other turn nothing. B is what the workflow gave the role, or else the reward R of the episode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agentrl.record.trajectory import TokenRecord, Turn


def role_reward(turn: Turn, episode_reward: float) -> float:
    """B: the reward of the role that a turn is of."""
    return episode_reward if turn.role_reward is None else turn.role_reward


def mean(values: Sequence[float]) -> float:
    """The mean of one value or more. Equal values have exactly themselves as their mean, so that nothing deviates from it."""
    return values[0] + sum(value - values[0] for value in values) / len(values)


def turn_returns(record: TokenRecord, episode_reward: float, turn_discount: float | None = None) -> list[float]:
    """What every turn of a record is worth, in the order of `record.turns`.

    Without a discount: r(t) if the workflow gave one, else the mean of B over the leaves that t leads to. With discount
    γ, the return G(t) = r(t) + γ · mean of G over the turns that continue t; for a single branch of K turns with
    nothing but an episode reward that is γ^(K−k)·R at turn k (Kevin, arXiv 2507.11948, eq. 1).
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    position = {id(turn): index for index, turn in enumerate(record.turns)}
    for index, turn in enumerate(record.turns):
        if turn.parent is not None:
            children[position[id(turn.parent)]].append(index)
    returns = [0.0] * len(record.turns)
    leaf_rewards: list[list[float]] = [[] for _ in record.turns]
    for index in reversed(range(len(record.turns))):  # a turn is recorded after its parent
        turn, followers = record.turns[index], children[index]
        own = role_reward(turn, episode_reward)
        leaf_rewards[index] = [b for child in followers for b in leaf_rewards[child]] or [own]
        if turn_discount is None:
            returns[index] = mean(leaf_rewards[index]) if turn.reward is None else turn.reward
        else:
            later = mean([returns[child] for child in followers]) if followers else 0.0
            earned = turn.reward if turn.reward is not None else 0.0 if followers else own
            returns[index] = earned + turn_discount * later
    return returns


def earned_rewards(record: TokenRecord, episode_reward: float) -> list[float]:
    """e(t), what each turn itself earned, in the order of `record.turns`: r(t) if the workflow gave one, else B for a leaf,
    else 0."""
    leaves = {id(turn) for turn in record.leaves()}
    return [
        turn.reward if turn.reward is not None else role_reward(turn, episode_reward) if id(turn) in leaves else 0.0
        for turn in record.turns
    ]
