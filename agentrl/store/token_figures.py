"""Figures of the tokens of some episodes that only the trainer knows: log p, entropy and advantage.

    training step ─► file beside the weights ─► TrainedStep ─► table `token_figures`, with the batch and its checkpoint

They are kept of a share of the episodes: 12 bytes of float32 a sampled token.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from agentrl.record.trajectory import TokenRecord
from agentrl.store.rows import from_column

Columns = tuple[bytes, ...]
"""log p, entropy and advantage of the sampled tokens of all turns, end to end, as columns of the store; NaN: the step had none."""
FILE = "token_figures.msgpack"
SHARE = 0.05
"""Share of the episodes whose figures are kept."""
GOLDEN_RATIO = 0.6180339887498949
"""Its multiples, without what is before the point, fill the interval from 0 to 1 as evenly as can be."""


@dataclass(frozen=True)
class TokenFigures:
    """Figures of the sampled tokens of an episode, as the step computed them that trained on it.

    Each is a list for every turn of the record. A token has None that the step did not train on, or of which it had none.
    """

    proximal: list[list[float | None]]
    """[turn][T] log p: under the weights as the step began, at the token's temperature."""
    entropy: list[list[float | None]]
    """[turn][T] of the distribution under the same weights, in nats."""
    advantage: list[list[float | None]]
    """[turn][T] A as the loss had it, with KL penalty, critic, teacher and whitening."""


def has_figures(episode: int) -> bool:
    """Return whether figures of an episode are kept, which its id decides: of `SHARE` of the episodes, spread evenly."""
    return episode * GOLDEN_RATIO % 1 < SHARE


def write_figures(directory: Path, figures: Mapping[int, Columns]) -> None:
    """Write figures, by the id of their episode, beside the weights that a step made."""
    (directory / FILE).write_bytes(msgspec.msgpack.encode(figures))


def read_figures(directory: Path) -> dict[int, Columns]:
    """Return the figures beside weights that a step made."""
    return msgspec.msgpack.decode((directory / FILE).read_bytes(), type=dict[int, Columns])


def token_figures(db: sqlite3.Connection, episode: int, record: TokenRecord) -> TokenFigures | None:
    """Return the figures of an episode with this record; None: none are kept."""
    query = "SELECT proximal, entropy, advantage FROM token_figures WHERE episode = ?"
    row = db.execute(query, (episode,)).fetchone()
    return None if row is None else TokenFigures(*(_by_turn(column, record) for column in row))


def _by_turn(column: bytes, record: TokenRecord) -> list[list[float | None]]:
    values = (None if math.isnan(value) else value for value in from_column(column))
    return [list(islice(values, len(turn.output_ids))) for turn in record.turns]
