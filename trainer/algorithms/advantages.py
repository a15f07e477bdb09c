"""Group advantages: how much better a turn is than what the same task usually gives. docs/credit.md has the whole rule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.record.credit import earned_rewards, mean, turn_returns
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.trainer.algorithms.losses import kl_estimate
from agentrl.trainer.packing import Pack, TrainingSequence

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"]
EPSILON = 1e-6
"""Keeps GRPO's division finite in a group whose rewards are all equal."""


@dataclass(frozen=True)
class Baseline:
    """What turns a score of one episode into an advantage: (score − mean) / scale."""

    mean: float
    scale: float

    def advantage(self, score: float) -> float:
        """The advantage of `score`."""
        return (score - self.mean) / self.scale


def baselines(scores: Sequence[Sequence[float]], estimator: Estimator, *, weigh_turns: bool = False) -> list[Baseline]:
    """One baseline an episode, from the scores s of the turns of several episodes, one turn at least each.

    A score's weight w is 1/K, K the turns of its episode, so that episodes weigh the same; with `weigh_turns` it is 1. W = Σw.

    grpo: A = (s − mean) / (std + 1e-6), both over all scores, mean = Σws/W, std = √(Σw(s − mean)² / (W − 1)) (DeepSeekMath,
    arXiv 2402.03300; the denominator is that of TRL and verl). Whatever is divided by std is a deviation of one of the scores that std
    is of, so |A| < √(W/w).
    dr_grpo: A = s − mean, free of the bias towards easy and hard tasks (Liu et al. 2025, arXiv 2503.20783).
    reinforce_pp: A = s, and reinforce_pp_baseline: A = s − mean; `whitened` over the whole batch (REINFORCE++, arXiv 2501.03262).
    rloo: A = s − mean of the other episodes' scores (Ahmadian et al. 2024, arXiv 2402.14740); with no other, s.
    """
    # Of each episode, lists of scores whose weights add up to 1.
    samples = [[[score] for score in own] if weigh_turns else [own] for own in scores]
    means = [[mean(sample) for sample in own] for own in samples]
    middle = mean([value for own in means for value in own])
    if estimator == "grpo":
        squares = [mean([(score - middle) ** 2 for score in sample]) for own in samples for sample in own]
        std = (sum(squares) / max(1, len(squares) - 1)) ** 0.5
        return [Baseline(middle, std + EPSILON)] * len(scores)
    if estimator in ("dr_grpo", "reinforce_pp_baseline"):
        return [Baseline(middle, 1.0)] * len(scores)
    if estimator == "reinforce_pp":
        return [Baseline(0.0, 1.0)] * len(scores)
    others = ([value for own in (*means[:i], *means[i + 1 :]) for value in own] for i in range(len(means)))
    return [Baseline(mean(known) if known else 0.0, 1.0) for known in others]


def overlong_penalty(longest: int, config: TrainerConfig) -> float:
    """What an episode with a reply of `longest` tokens loses: 0 up to L − m, then rising to 1 at L (DAPO, arXiv 2503.14476,
    eq. 13, with L = overlong_tokens, m = overlong_margin)."""
    if config.overlong_tokens is None or config.overlong_margin is None:
        return 0.0
    over = longest - (config.overlong_tokens - config.overlong_margin)
    return min(1.0, max(0.0, over / config.overlong_margin))


def with_kl_penalty(batch: Pack, logprobs: Tensor, reference: Tensor, config: TrainerConfig) -> Pack:
    """The pack whose tokens each pay β·k_t, k = log p − log reference, for being unlike the reference.

    With a critic it is taken off the token's reward, so that γ, λ and the critic see it. Without, a token's advantage becomes
    A_t − β·Σ_{i≥t} k_i, over the trained tokens of the same trajectory (REINFORCE++, arXiv 2501.03262, eq. 3).

    `logprobs`, `reference`: [M] log p and log reference, without gradients.
    """
    kl = kl_estimate(logprobs, reference, config.kl_form)
    if config.advantage == "gae":
        return replace(batch, rewards=batch.rewards - config.kl_coef * kl)
    total = batch.sequences.sum(kl)
    started = torch.cat([kl.new_zeros(1), kl.cumsum(0)])
    first = torch.searchsorted(batch.index, batch.index)  # of each token, the first of its trajectory
    before = started[:-1] - started[first]
    return replace(batch, advantages=batch.advantages - config.kl_coef * (total - before))


def with_distillation(batch: Pack, logprobs: Tensor, config: TrainerConfig) -> Pack:
    """The pack with A_t + c·(log q_t − log p_t): each sampled token is worth what the teacher q thinks of it, so that the policy
    descends KL(p‖q) on its own samples (Agarwal et al. 2024, arXiv 2306.13649; Lu et al. 2025, "On-Policy Distillation").

    `logprobs`: [M] log p, without gradients. A pack without a teacher stays as it is.
    """
    if batch.teacher_logprobs is None:
        return batch
    return replace(batch, advantages=batch.advantages + config.teacher_coef * (batch.teacher_logprobs - logprobs))


def whitened(advantages: Sequence[Tensor], total: Callable[[Sequence[float]], list[float]] = list) -> Iterator[Tensor]:
    """The advantages with mean 0 and deviation 1 over all their N tokens, the deviation by N − 1. `total` adds numbers up over the
    trainer's ranks."""
    everything = [values.double() for values in advantages]
    count, first = total([float(sum(map(len, everything))), float(sum(values.sum() for values in everything))])
    mean = first / max(1.0, count)
    (second,) = total([float(sum((values - mean).square().sum() for values in everything))])
    deviation = (second / max(1.0, count - 1)) ** 0.5 + EPSILON
    for values in advantages:
        yield (values - mean) / deviation


def group_advantages(
    records: Sequence[TokenRecord], rewards: Sequence[float], config: TrainerConfig
) -> list[list[float]]:
    """Return what every turn of every episode of one group is worth to the trainer, and mark the turns that it leaves out.

    That is its advantage, or, for a critic (`advantage = "gae"`), its reward; in the order of `record.turns`.
    """
    for record in records:
        mask_turns(record, config)
    left = [
        reward - overlong_penalty(longest_reply(record), config)
        for record, reward in zip(records, rewards, strict=True)
    ]
    if config.advantage == "gae":
        return [turn_rewards(record, reward, config) for record, reward in zip(records, left, strict=True)]
    return turn_advantages(records, left, config)


def longest_reply(record: TokenRecord) -> int:
    """Return the tokens of the longest reply of an episode."""
    return max((len(turn.output_ids) for turn in record.turns), default=0)


def turn_advantages(
    records: Sequence[TokenRecord], rewards: Sequence[float], config: TrainerConfig
) -> list[list[float]]:
    """The advantage of every turn of every episode of one group, in the order of `record.turns`.

    A turn is compared with those of the same role in the group's episodes, its score with theirs: so each score is
    one of those that it is compared with. A turn that was truncated or failed, where that is to be penalised, has
    `turn_penalty` taken off.
    """
    scores = [
        turn_returns(record, reward, config.turn_discount) for record, reward in zip(records, rewards, strict=True)
    ]
    populations: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for episode, (record, own) in enumerate(zip(records, scores, strict=True)):
        for turn, score in zip(record.turns, own, strict=True):
            populations[turn.role].setdefault(episode, []).append(score)
    weigh_turns = config.turn_discount is not None
    baseline = {
        role: dict(zip(of, baselines(list(of.values()), config.advantage, weigh_turns=weigh_turns), strict=True))
        for role, of in populations.items()
    }
    return [
        [
            baseline[turn.role][episode].advantage(score) - turn_penalty(turn, config)
            for turn, score in zip(record.turns, own, strict=True)
        ]
        for episode, (record, own) in enumerate(zip(records, scores, strict=True))
    ]


def turn_rewards(record: TokenRecord, reward: float, config: TrainerConfig) -> list[float]:
    """What each turn of an episode earned, penalties taken off, in the order of `record.turns`: the rewards that a critic sees.

    A turn that is not trained on hands what it earned to the turn that it continues: all of it, or, where c turns continue that one, a
    c-th, whichever of them it is.
    """
    earned = [
        own - turn_penalty(turn, config) for own, turn in zip(earned_rewards(record, reward), record.turns, strict=True)
    ]
    position = {id(turn): index for index, turn in enumerate(record.turns)}
    continued = Counter(id(turn.parent) for turn in record.turns if turn.parent is not None)
    for index in reversed(range(len(earned))):  # a turn is recorded after its parent
        turn = record.turns[index]
        if turn.trained and turn.output_ids:
            continue
        if turn.parent is not None:
            earned[position[id(turn.parent)]] += earned[index] / continued[id(turn.parent)]
        earned[index] = 0.0
    return earned


def turn_penalty(turn: Turn, config: TrainerConfig) -> float:
    """What a turn pays for having been truncated or having failed, where that is to be penalised."""
    truncated = turn.truncated and config.truncated_turns == "penalise"
    failed = turn.failed and config.failed_turns == "penalise"
    return config.turn_penalty if truncated or failed else 0.0


def mask_turns(record: TokenRecord, config: TrainerConfig) -> None:
    """Leave out of training what the configuration says: truncated turns, failed turns."""
    for turn in record.turns:
        if (turn.truncated and config.truncated_turns == "mask") or (turn.failed and config.failed_turns == "mask"):
            turn.trained = False


def has_gradient(sequence: TrainingSequence, config: TrainerConfig) -> bool:
    """Whether a sequence can move the policy. One whose advantages are all 0 cannot, where the advantages that it comes with are all
    there is; "m2po" looks at every token to choose those it keeps."""
    advantages_are_all = (
        config.kl == "none"
        and not config.teacher_url
        and not config.entropy_coef
        and config.advantage in ("grpo", "dr_grpo", "rloo")
        and config.objective != "m2po"
    )
    return not advantages_are_all or bool((sequence.advantages[sequence.loss_mask] != 0).any())
