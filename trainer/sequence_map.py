"""Which token of a pack belongs to which sequence: sums and means over sequences of tokens that lie in one row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceMap:
    """Which token belongs to which of S sequences, and which tokens count.

    For two sequences of three tokens, of which the first token of each is a prompt:

        sequence_index  [0, 0, 0, 1, 1, 1]
        loss_mask       [0, 1, 1, 0, 1, 1]
        sum(values)     [b+c, b+c, b+c, e+f, e+f, e+f] for values [a, b, c, d, e, f]
    """

    sequence_index: Tensor
    """[T] index of the token's sequence, from 0."""
    sequence_count: int
    """S."""
    loss_mask: Tensor
    """[T] bool."""

    def sum(self, values: Tensor) -> Tensor:
        """Add values up over the trained tokens of each sequence.

        Args:
            values: [T].

        Returns:
            [T] for every token the sum of its sequence.
        """
        totals = values.new_zeros(self.sequence_count).index_add(0, self.sequence_index, values * self.loss_mask)
        return totals[self.sequence_index]

    def mean(self, values: Tensor) -> Tensor:
        """Average values over the trained tokens of each sequence.

        Args:
            values: [T].

        Returns:
            [T] for every token the mean of its sequence; 0 where that has no trained token.
        """
        return self.sum(values) / self.lengths(values).clamp(min=1)

    def lengths(self, like: Tensor) -> Tensor:
        """Count the trained tokens of each sequence.

        Args:
            like: [T] a tensor of the type and device that the result has.

        Returns:
            [T] for every token the count of its sequence.
        """
        return self.sum(torch.ones_like(like))
