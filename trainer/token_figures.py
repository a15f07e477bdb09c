"""Figures of single tokens that a training step computes anyway: log p, entropy and advantage, of the episodes that they are kept of.

    pack ─► rows [n, 5] of this rank ─► rows of all ranks and roles ─► columns of each episode ─► `agentrl.store.token_figures`

They take no forward pass of their own. A turn is trained on in one sequence of one pack, so its rows are in the order of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.store.episodes import FinishedEpisode
from agentrl.store.rows import array_column
from agentrl.store.token_figures import Columns
from agentrl.trainer.minibatches import PreparedPack


def pack_figures(prepared: PreparedPack, logprobs: Tensor | None, entropies: Tensor | None) -> Tensor:
    """Return the rows of a pack.

    Args:
        prepared: The pack.
        logprobs: [M] log p under the weights as the step began; None: no pass was under them.
        entropies: [M] likewise.

    Returns:
        [n, 5] float64 on the CPU, of those of its M tokens that figures are kept of: the episode's id, the turn in its record, log p,
        entropy, advantage.
    """
    pack, advantages = prepared.pack, prepared.advantages
    episodes, unknown = pack.episodes[pack.sequence_index], torch.full_like(advantages, torch.nan)
    scores = (unknown if known is None else known for known in (logprobs, entropies))
    columns = [column.double() for column in (episodes, pack.turn_index, *scores, advantages)]
    return torch.stack(columns, dim=1)[episodes >= 0].cpu()


def figures_by_episode(rows: Tensor, episodes: Sequence[FinishedEpisode]) -> dict[int, Columns]:
    """Return the figures of each episode that has some, as the store holds them.

    Args:
        rows: [n, 5] of a whole step.
        episodes: The batch.

    Returns:
        Columns by the episode's id, with a number for each sampled token of its record: NaN where there is no row.
    """
    numbers, found = rows.numpy(), {}
    for episode in episodes:
        own = numbers[numbers[:, 0] == episode.id]
        turns = [_of_turn(own, index, len(turn.output_ids)) for index, turn in enumerate(episode.record.turns)]
        if len(own):
            found[episode.id] = tuple(array_column("f", column.tobytes()) for column in np.concatenate(turns).T)
    return found


def _of_turn(rows: NDArray[np.float64], turn: int, length: int) -> NDArray[np.float32]:
    """Return [length, 3] the figures of a turn. Nothing predicts the first token of a sequence, which has none."""
    known = rows[rows[:, 1] == turn, 2:].astype(np.float32)
    return np.pad(known, ((length - len(known), 0), (0, 0)), constant_values=np.nan)
