"""Stored episodes as training sequences: rewards become advantages, and each trajectory becomes tensors, once a step.

episodes of whole groups ─► rewards, penalties taken off ─► advantages (or rewards, for a critic) of turns ─► tensors of trajectories
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.config import TrainerConfig
from agentrl.record.credit import group_advantages
from agentrl.record.trajectory import Trajectory
from agentrl.store.episodes import FinishedEpisode
from agentrl.store.token_figures import has_figures
from agentrl.trainer.packing import TrainingSequence


def training_sequences(episodes: Sequence[FinishedEpisode], config: TrainerConfig) -> list[list[TrainingSequence]]:
    """Make the training sequences of whole groups.

    Args:
        episodes: The episodes, those of a group next to each other. Their turns are marked as not trained where the configuration
            masks them.
        config: How rewards become advantages.

    Returns:
        [episode][path] sequences. A path without a trained token has none. Where roles have adapters of their own, it has one for each
        role that sampled trained tokens of it, in the order of these tokens.
    """
    sequences: list[list[TrainingSequence]] = []
    for _, members in groupby(episodes, key=lambda episode: episode.group_id):
        group = list(members)
        per_turn = group_advantages([e.record for e in group], [e.reward for e in group], config)
        for episode, own in zip(group, per_turn, strict=True):
            kept_of = episode.id if has_figures(episode.id) else -1
            trajectories = [path for path in episode.record.trajectories() if any(path.loss_mask)]
            sequences.append(
                [
                    replace(_training_sequence(path, own, config, adapter, mask), episode=kept_of)
                    for path in trajectories
                    for adapter, mask in _masks(path, [turn.adapter for turn in episode.record.turns]).items()
                ]
            )
    return sequences


def _masks(path: Trajectory, adapters: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return [T] which tokens of a trajectory each adapter learns from. `adapters`: [turn of its record] the one that answered."""
    # numpy reads a list five times as fast as torch.tensor does.
    loss_mask = np.array(path.loss_mask, dtype=np.bool_)
    if not any(adapters):
        return {"": loss_mask}
    of_token = np.array(adapters)[np.array(path.turn_index, dtype=np.int64)]
    return {adapter: loss_mask & (of_token == adapter) for adapter in dict.fromkeys(of_token[loss_mask].tolist())}


def _training_sequence(
    path: Trajectory, per_turn: Sequence[float], config: TrainerConfig, adapter: str, loss_mask: NDArray[np.bool_]
) -> TrainingSequence:
    """Make tensors of a trajectory, whose tokens of `loss_mask` an adapter learns from.

    `per_turn`: the advantage of each turn of its record, or its reward where there is a critic.
    """
    turn_index = np.array(path.turn_index, dtype=np.int64)
    per_token = np.array(per_turn, dtype=np.float32)[turn_index]
    rewards = np.zeros_like(per_token)
    if config.has_critic:
        last = np.append(turn_index[1:] != turn_index[:-1], True) & loss_mask
        rewards[last] = per_token[last]  # a turn is rewarded at its last token
    return TrainingSequence(
        token_ids=torch.from_numpy(np.array(path.token_ids, dtype=np.int64)),
        loss_mask=torch.from_numpy(loss_mask),
        behaviour_logprobs=torch.from_numpy(np.array(path.logprobs, dtype=np.float32)),
        versions=torch.from_numpy(np.array(path.versions, dtype=np.int64)),
        temperatures=torch.from_numpy(np.array(path.temperatures, dtype=np.float32)),
        advantages=torch.from_numpy(per_token),
        rewards=torch.from_numpy(rewards),
        turn_index=torch.from_numpy(turn_index),
        truncated=path.truncated and (not adapter or bool(loss_mask[-1])),
        adapter=adapter,
    )
