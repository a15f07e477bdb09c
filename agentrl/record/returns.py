"""From rewards to the return of each turn: docs/credit.md in code.

A turn t has the reward r(t) that the workflow gave it; without one, a leaf earns the reward B of its role and any
other turn nothing. B is what the workflow gave the role, or else the reward R of the episode. Where roles have adapters of their own, each
is an agent of its own: what ends for it is what none of its own turns goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.record.trajectory import TokenRecord, Turn


def role_reward(turn: Turn, episode_reward: float) -> float:
    """Return B, the reward of the role that a turn is of."""
    return episode_reward if turn.role_reward is None else turn.role_reward


def mean(values: Sequence[float]) -> float:
    """Return the mean of one value or more. Equal values have exactly themselves as their mean, so that nothing deviates from it."""
    return values[0] + sum(value - values[0] for value in values) / len(values)


def turn_returns(record: TokenRecord, episode_reward: float, turn_discount: float | None = None) -> list[float]:
    """Return the return of every turn of a record, in the order of `record.turns`.

    Without a discount it is r(t) if the workflow gave one, else B if it gave the turn's role one, else the mean of B over the leaves that t
    leads to. With discount
    γ it is G(t) = e(t) + γ · mean of G over the turns that continue t; for a single branch of K turns with
    nothing but an episode reward that is γ^(K−k)·R at turn k (Kevin, arXiv 2507.11948, eq. 1).

    Args:
        record: The turns of one episode.
        episode_reward: R.
        turn_discount: γ; None for no discount.

    Returns:
        One return a turn.
    """
    children = _followers(record)
    returns = [0.0] * len(record.turns)
    leaf_rewards: list[list[float]] = [[] for _ in record.turns]
    for index in reversed(range(len(record.turns))):  # a turn is recorded after its parent
        turn, followers = record.turns[index], children[index]
        own = role_reward(turn, episode_reward)
        leaf_rewards[index] = [b for child in followers for b in leaf_rewards[child]] or [own]
        if turn_discount is None:
            of_role = mean(leaf_rewards[index]) if turn.role_reward is None else own
            returns[index] = of_role if turn.reward is None else turn.reward
        else:
            later = mean([returns[child] for child in followers]) if followers else 0.0
            immediate = turn.reward if turn.reward is not None else 0.0 if followers else own
            returns[index] = immediate + turn_discount * later
    return returns


def immediate_rewards(record: TokenRecord, episode_reward: float) -> list[float]:
    """Return e(t), what each turn itself earned: r(t) if the workflow gave one, else B for a leaf, else 0.

    A turn of an adapter earns B where its adapter says nothing later: all of it where that is so in every branch that goes on from it, and
    where c turns go on from one, a c-th for each that is so.

    Args:
        record: The turns of one episode.
        episode_reward: R.

    Returns:
        One reward a turn, in the order of `record.turns`.
    """
    children = _followers(record)
    adapters = {turn.adapter for turn in record.turns}
    ended: list[dict[str, float]] = [{} for _ in record.turns]
    """[turn] by adapter: the share of what goes on from a turn, itself included, in which the adapter says nothing."""
    rewards = [0.0] * len(record.turns)
    for index in reversed(range(len(record.turns))):  # a turn is recorded after its parent
        turn, followers = record.turns[index], children[index]
        after = {name: mean([ended[child][name] for child in followers]) if followers else 1.0 for name in adapters}
        ended[index] = {**after, turn.adapter: 0.0}
        if turn.reward is not None:
            rewards[index] = turn.reward
        elif after[turn.adapter]:
            rewards[index] = after[turn.adapter] * role_reward(turn, episode_reward)
    return rewards


def _followers(record: TokenRecord) -> list[list[int]]:
    """Return the turns that go on from each turn, by their numbers."""
    position = {id(turn): index for index, turn in enumerate(record.turns)}
    children: list[list[int]] = [[] for _ in record.turns]
    for index, turn in enumerate(record.turns):
        if turn.parent is not None:
            children[position[id(turn.parent)]].append(index)
    return children
