"""A batch of sequences dealt to minibatches and packed, once a step.

sequences ─► tree order ─► blocks of neighbours, shuffled ─► K minibatches ─► packs, of which each rank has its share
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.trainer.algorithms.token_advantages import has_gradient
from agentrl.trainer.model.critic import AdvantagesAndReturns
from agentrl.trainer.model.ranks import Ranks
from agentrl.trainer.packing import Pack, TrainingSequence, in_tree_order, pack_sequences

BLOCKS_A_MINIBATCH = 8
"""Into so many runs of neighbours sequences are cut before they are dealt to minibatches: what they share stays together."""


@dataclass(frozen=True)
class Minibatch:
    """The packs of one optimizer step, on this rank."""

    packs: list[Pack]
    """[pack] this rank's."""
    token_count: int
    """Trained tokens of all its sequences, on all ranks, also of those that are not computed."""
    sequence_count: int
    """Sequences with a trained token, likewise."""
    sequence_numbers: list[int]
    """[sequence] numbers in the batch of those that are in it, on all ranks."""


@dataclass(frozen=True)
class PreparedPack:
    """A pack with all that is known of it before the first optimizer step of its training step."""

    pack: Pack
    number: int
    """The number of the pack among this rank's packs of the step."""
    advantages: Tensor
    """[M] A, with KL penalty, critic, teacher and whitening."""
    start_logprobs: Tensor | None
    """[M] log probabilities under the policy as the step began; None: no forward pass was needed for them."""
    start_entropies: Tensor | None
    """[M] entropies of the same pass."""
    reference_logprobs: Tensor | None
    """[M] log reference, where there is one."""
    estimates: AdvantagesAndReturns | None
    """What the critic learns, where there is one."""


def deal_minibatches(
    sequences: Sequence[TrainingSequence], config: TrainerConfig, version: int, ranks: Ranks
) -> list[Minibatch]:
    """Deal sequences to minibatches in an order drawn from the version, and pack them.

    Neighbours in tree order are dealt together, so that they share in one pack. Sequences without a gradient are counted and not packed.

    Args:
        sequences: [sequence] the batch.
        config: How many minibatches, and how large a pack is.
        version: The policy version before the step.
        ranks: The trainer's ranks.

    Returns:
        [minibatch] those that have a sequence.
    """
    numbers = {id(sequence): number for number, sequence in enumerate(sequences)}
    ordered = in_tree_order(sequences)
    size = max(1, len(ordered) // (config.minibatches * BLOCKS_A_MINIBATCH))
    blocks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    shuffled = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(version)).tolist()
    minibatches = []
    for k in range(config.minibatches):
        members = [s for block in sorted(shuffled[k :: config.minibatches]) for s in blocks[block]]  # in tree order
        if not members:
            continue
        packs = pack_sequences([s for s in members if has_gradient(s, config)], config.tokens_per_pack, ordered=True)
        lengths = [int(s.loss_mask[1:].sum()) for s in members]
        minibatches.append(
            Minibatch(
                packs=ranks.shard(packs),
                token_count=sum(lengths),
                sequence_count=sum(length > 0 for length in lengths),
                sequence_numbers=sorted(numbers[id(s)] for s in members),
            )
        )
    return minibatches
