"""The tokens of an episode under other weights than those that sampled them, by the trainer's own forward pass, on the CPU.

paths of the record, every sampled token in the mask ─► packs ─► log p of each at its temperature ─► by turn
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from agentrl.engine.adapters import role_folders
from agentrl.errors import UsageError
from agentrl.record.trajectory import TokenRecord
from agentrl.trainer.model.packed_model import PackedModel, load_model, trained_throughout
from agentrl.trainer.packing import TrainingSequence, pack_sequences


def logprobs_under(model_path: Path, record: TokenRecord, tokens_per_pack: int) -> list[list[float | None]]:
    """Return [turn][T] log p of every sampled token under a model, at the temperature that it was sampled at.

    Args:
        model_path: A model directory, or a checkpoint with the adapter merged in.
        record: The record of an episode.
        tokens_per_pack: Tokens that are computed together.

    Returns:
        Logprobs; None for the first token of a path, which nothing predicts.

    Raises:
        UsageError: The checkpoint has an adapter for each role, or the episode has images.
        ConfigError: The model cannot be loaded, or is of a kind whose logprobs cannot be reproduced.
    """
    if roles := role_folders(model_path):
        raise UsageError(
            f"{model_path} has adapters of the roles {', '.join(roles)}, under which only a fork samples; score under base"
        )
    if any(turn.images for turn in record.turns):
        raise UsageError("the episode has images, which the trainer's model does not see: it cannot be scored")
    model = PackedModel(load_model(model_path))
    model.check()
    scores: list[list[float]] = [[] for _ in record.turns]
    for pack in pack_sequences(list(_sequences(record)), tokens_per_pack):
        with torch.no_grad():
            logprobs = model(pack).logprobs.tolist()
        for turn, logprob in zip(pack.turn_index.tolist(), logprobs, strict=True):
            scores[turn].append(logprob)
    return [[None] * (len(turn.output_ids) - len(part)) + part for turn, part in zip(record.turns, scores, strict=True)]


def _sequences(record: TokenRecord) -> Iterator[TrainingSequence]:
    """Yield the paths of a record, each with those sampled tokens to be scored that no path before it has."""
    seen: set[int] = set()
    for path in record.trajectories():
        mask = [version >= 0 and turn not in seen for version, turn in zip(path.versions, path.turn_index, strict=True)]
        seen.update(path.turn_index)
        yield replace(
            trained_throughout(torch.tensor(path.token_ids)),
            loss_mask=torch.tensor(mask),
            temperatures=torch.tensor(path.temperatures),
            turn_index=torch.tensor(path.turn_index),
        )
