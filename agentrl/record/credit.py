"""From rewards to the return of each turn, and to its advantage: how much better it is than what the same task usually gives.

    rewards of calls, roles and the episode ─► turn_returns ─► turn_advantages, within the group ─► trainer, with a baseline
                                           └─► immediate_rewards ─► turn_rewards ─► trainer, with a critic

docs/credit.md has the whole rule. A turn t has the reward r(t) that the workflow gave it; without one, a leaf earns the reward B of its role and
any other turn nothing. B is what the workflow gave the role, or else the reward R of the episode. Where roles have adapters of their own, each
is an agent of its own: what ends for it is what none of its own turns goes on from.

The trainer computes them, and who reads an episode sees the same ones: nothing here needs torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

from agentrl.config.trainer import TURN_PENALTY, GaeAdvantage, GroupAdvantage, TrainerConfig, TurnsConfig
from agentrl.record.trajectory import TokenRecord, Turn

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"]
EPSILON = 1e-6
"""Keeps a division by a deviation finite where all values are equal."""


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
    index_of = {turn: index for index, turn in enumerate(record.turns)}
    followers: list[list[int]] = [[] for _ in record.turns]
    for index, turn in enumerate(record.turns):
        if turn.parent is not None:
            followers[index_of[turn.parent]].append(index)
    return followers


def advantages_of(
    returns: Sequence[Sequence[float]], estimator: Estimator, *, weigh_turns: bool = False
) -> list[list[float]]:
    """Return the advantages A of the turns of several episodes, from their returns G: (G − baseline) / scale.

    A return's weight w is 1/K, K the turns of its episode, so that episodes weigh the same; with `weigh_turns` it is 1. W = Σw.

    grpo: A = (G − mean) / (std + 1e-6), both over all returns, mean = Σw·G/W, std = √(Σw(G − mean)² / (W − 1)) (DeepSeekMath,
    arXiv 2402.03300; the denominator is that of TRL and verl). Whatever is divided by std is a deviation of one of the returns that std
    is of, so |A| < √(W/w).
    dr_grpo: A = G − mean, free of the bias towards easy and hard tasks (Liu et al. 2025, arXiv 2503.20783).
    reinforce_pp: A = G, and reinforce_pp_baseline: A = G − mean; `whitened` over the whole batch (REINFORCE++, arXiv 2501.03262).
    rloo: A = G − mean of the other episodes' returns (Ahmadian et al. 2024, arXiv 2402.14740); with no other, G.

    Args:
        returns: [episode][turn], one turn at least each.
        estimator: One of the names above.
        weigh_turns: Whether turns weigh the same in place of episodes.

    Returns:
        [episode][turn] advantages.
    """
    # [episode][sample][turn]: of each episode, lists of returns whose weights add up to 1.
    samples = [[[value] for value in own] if weigh_turns else [own] for own in returns]
    means = [[mean(sample) for sample in own] for own in samples]  # [episode][sample]
    total_mean = mean([value for own in means for value in own])
    baseline, scale = [total_mean] * len(returns), 1.0
    if estimator == "grpo":
        squares = [mean([(value - total_mean) ** 2 for value in sample]) for own in samples for sample in own]
        scale = (sum(squares) / max(1, len(squares) - 1)) ** 0.5 + EPSILON
    elif estimator == "reinforce_pp":
        baseline = [0.0] * len(returns)
    elif estimator == "rloo":
        others = ([value for own in (*means[:i], *means[i + 1 :]) for value in own] for i in range(len(means)))
        baseline = [mean(values) if values else 0.0 for values in others]
    return [[(value - base) / scale for value in own] for own, base in zip(returns, baseline, strict=True)]


def overlong_penalty(longest: int, tokens: int | None) -> float:
    """Return what an episode loses for its longest reply: 0 up to L − m tokens, then rising to 1 at L.

    That is DAPO's soft punishment (arXiv 2503.14476, eq. 13), with the paper's m = L/5.

    Args:
        longest: Tokens of the longest reply.
        tokens: L; None: nothing is lost.

    Returns:
        The penalty, in units of reward.
    """
    return min(1.0, max(0.0, 5 * longest / tokens - 4)) if tokens else 0.0


def group_advantages(
    records: Sequence[TokenRecord], rewards: Sequence[float], config: TrainerConfig
) -> list[list[float]]:
    """Return the advantage of every turn of one group, or, for a critic, its reward; and mark the turns that are not trained on.

    Args:
        records: [episode]. Turns that the configuration masks are marked in them.
        rewards: [episode].
        config: How rewards become advantages; under the kind "gae" a critic makes them of the turns' rewards.

    Returns:
        [episode][turn], turns in the order of `record.turns`.
    """
    for record in records:
        mask_turns(record, config.turns)
    punished = [
        reward - overlong_penalty(longest_reply(record), config.overlong_tokens)
        for record, reward in zip(records, rewards, strict=True)
    ]
    if isinstance(config.advantage, GaeAdvantage):
        return [turn_rewards(record, reward, config.turns) for record, reward in zip(records, punished, strict=True)]
    return turn_advantages(records, punished, config.advantage, config.turns)


def longest_reply(record: TokenRecord) -> int:
    """Return the number of tokens of an episode's longest reply, 0 where it has none. Conversations that are left out do not count."""
    return max((len(turn.output_ids) for turn in record.turns if not turn.left_out), default=0)


def turn_advantages(
    records: Sequence[TokenRecord], rewards: Sequence[float], how: GroupAdvantage, turns: TurnsConfig
) -> list[list[float]]:
    """Return the advantage of every turn of every episode of one group.

    A turn is compared with those of the same role in the group's episodes, its return with theirs: so each return is
    one of those that it is compared with. A turn of a conversation that is left out is compared with nothing, and nothing with it: its
    advantage is 0. A turn that was truncated or failed, where that is to be penalised, has
    `TURN_PENALTY` taken off.

    Args:
        records: [episode].
        rewards: [episode].
        how: The estimator and the turn discount.
        turns: The penalties.

    Returns:
        [episode][turn], turns in the order of `record.turns`.
    """
    returns = [
        turn_returns(record, reward, how.discount) for record, reward in zip(records, rewards, strict=True)
    ]  # [episode][turn]
    advantages = [[0.0] * len(record.turns) for record in records]
    by_role: defaultdict[str, dict[int, list[int]]] = defaultdict(dict)  # [role][episode] its turns, by their numbers
    for episode, record in enumerate(records):
        for index, turn in enumerate(record.turns):
            if not turn.left_out:
                by_role[turn.role].setdefault(episode, []).append(index)
    for of_role in by_role.values():
        compared = [[returns[episode][index] for index in own] for episode, own in of_role.items()]
        found = advantages_of(compared, how.kind, weigh_turns=how.discount is not None)
        for (episode, own), values in zip(of_role.items(), found, strict=True):
            for index, value in zip(own, values, strict=True):
                advantages[episode][index] = value - turn_penalty(records[episode].turns[index], turns)
    return advantages


def turn_rewards(record: TokenRecord, reward: float, turns: TurnsConfig) -> list[float]:
    """Return what each turn of an episode earned, penalties taken off: the rewards that a critic sees.

    A turn that is not trained on hands its reward to the turn that it continues: all of it, or, where c turns continue that one, a
    c-th, whichever of them it is. Turns of other adapters on the way pass it on, since it is none of theirs.

    Args:
        record: The turns of one episode.
        reward: The reward of the episode.
        turns: The penalties.

    Returns:
        [turn], in the order of `record.turns`.
    """
    rewards = [
        own - turn_penalty(turn, turns)
        for own, turn in zip(immediate_rewards(record, reward), record.turns, strict=True)
    ]
    index_of = {turn: index for index, turn in enumerate(record.turns)}
    children = Counter(turn.parent for turn in record.turns)
    for index in reversed(range(len(rewards))):  # a turn is recorded after its parent
        turn = record.turns[index]
        if turn.trained and not turn.left_out and turn.output_ids:
            continue
        handed, rewards[index] = rewards[index], 0.0
        heir = turn.parent
        while heir is not None:
            handed /= children[heir]
            if heir.adapter == turn.adapter:
                rewards[index_of[heir]] += handed
                break
            heir = heir.parent
    return rewards


def turn_penalty(turn: Turn, turns: TurnsConfig) -> float:
    """Return what a turn pays for having been truncated or having failed, where that is to be penalised."""
    return TURN_PENALTY if _treated(turn, turns, "penalise") else 0.0


def mask_turns(record: TokenRecord, turns: TurnsConfig) -> None:
    """Leave out of training what the configuration says: truncated turns, failed turns, turns of an altered sampling."""
    for turn in record.turns:
        if _treated(turn, turns, "mask") or (turn.alterations and turns.altered_sampling == "mask"):
            turn.trained = False


def _treated(turn: Turn, turns: TurnsConfig, how: str) -> bool:
    return (turn.truncated and turns.truncated == how) or (turn.failed and turns.failed == how)
