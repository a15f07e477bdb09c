"""Sequences laid end to end in packs of bounded size, so that no computation is spent on padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.trainer.objectives import Sequences


@dataclass(frozen=True)
class TrainingSequence:
    """One trajectory as tensors, each [T]."""

    token_ids: Tensor
    loss_mask: Tensor
    behaviour_logprobs: Tensor
    versions: Tensor
    temperatures: Tensor
    advantages: Tensor

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@dataclass(frozen=True)
class Pack(TrainingSequence):
    """Several sequences end to end, `T` tokens in all. Every tensor but `bounds` is [T]."""

    position_ids: Tensor
    """Position in the token's own sequence."""
    bounds: Tensor
    """[sequences + 1] int32: where each sequence starts, and the end."""

    @property
    def sequences(self) -> Sequences:
        """Whose tokens these are."""
        lengths = self.bounds.diff()
        index = torch.repeat_interleave(torch.arange(len(lengths)), lengths.long())
        return Sequences(index, len(lengths), self.loss_mask)

    @property
    def trained_sequences(self) -> int:
        """Sequences with a token that is trained on."""
        return int(self.sequences.index[self.loss_mask].unique().numel())

    @property
    def tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.loss_mask.sum())


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `budget`; an item above the budget has a bin of its own."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((b for b, left in enumerate(room) if left >= lengths[index]), None)
        if place is None:
            bins.append([index])
            room.append(budget - lengths[index])
        else:
            bins[place].append(index)
            room[place] -= lengths[index]
    return bins


def pack(sequences: Sequence[TrainingSequence], budget: int) -> list[Pack]:
    """Lay `sequences` into packs of at most `budget` tokens."""
    return [
        _join([sequences[i] for i in chosen]) for chosen in first_fit_decreasing([len(s) for s in sequences], budget)
    ]


def _join(sequences: Sequence[TrainingSequence]) -> Pack:
    lengths = [len(sequence) for sequence in sequences]
    columns = {name: torch.cat([getattr(s, name) for s in sequences]) for name in TrainingSequence.__dataclass_fields__}
    return Pack(
        **columns,
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        bounds=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
    )
