"""Random trajectories that share beginnings, for tests of what is computed once."""

from __future__ import annotations

import random

import torch

from agentrl.trainer.packing import TrainingSequence


def training_sequence(ids: list[int], trained: list[bool], rng: random.Random) -> TrainingSequence:
    def numbers(low: float, high: float) -> torch.Tensor:
        return torch.tensor([rng.uniform(low, high) for _ in ids])

    return TrainingSequence(
        token_ids=torch.tensor(ids),
        loss_mask=torch.tensor(trained),
        behaviour_logprobs=numbers(-3, 0),
        versions=torch.tensor([rng.randrange(3) if chosen else -1 for chosen in trained]),
        temperatures=torch.tensor([rng.choice([0.7, 1.0, 1.3]) for _ in ids]),
        advantages=numbers(-2, 2),
        rewards=numbers(-1, 1),
        turn_index=torch.tensor(sorted(rng.randrange(3) for _ in ids)),
    )


def random_tree(rng: random.Random, *, depth: int, longest: int = 9, tokens: int = 470) -> list[TrainingSequence]:
    """The paths of a random tree, two or more; each token that is trained on is trained on in one of them, as in a token record."""
    paths: list[TrainingSequence] = []

    def grow(ids: list[int], fresh: list[bool], level: int) -> None:
        new = [rng.randrange(9, tokens) for _ in range(rng.randint(1, longest))]
        ids, fresh = ids + new, [*fresh, *(rng.random() < 0.6 for _ in new)]
        fresh[0] = False
        children = rng.randint(0 if level else 2, 3) if level < depth else 0
        if not children:
            paths.append(training_sequence(ids, fresh, rng))
        for child in range(children):
            grow(ids, fresh if child == 0 else [False] * len(ids), level + 1)

    grow([], [], 0)
    return paths
