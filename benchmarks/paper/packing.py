"""Micro-batches packed by tokens against a fixed number of sequences each (AReaL, arXiv 2505.24298, algorithm 1: 30 % more tokens a second).

    python benchmarks/paper/packing.py [--budget 4096 2048 1024] [--episodes 64] [--rounds 5] [--model nano]

Lengths are those of real episodes (scale_traces.json); every sequence has tokens of its own, so nothing is shared: what sharing saves is
in tree_training.py. Both ways hold at most --budget tokens a micro-batch: packed, sequences fill it, the longest first (the trainer's own
way); fixed, as many sequences as fit if all were as long as the longest. One optimizer step over the same batch, in turn; medians. Without
a GPU, seconds are those of the CPU, of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.config.trainer import OptimizerConfig, TrainerConfig
from agentrl.models import model_directory
from agentrl.trainer import minibatches
from agentrl.trainer.packing import Pack, TrainingSequence, in_tree_order, pack_sequences, prefix_tree
from agentrl.trainer.policy import Policy

TRACES = Path(__file__).parents[1] / "scale_traces.json"
PackAll = Callable[..., list[Pack]]


def sequences_of(episodes: Sequence[dict[str, Any]], vocabulary: int) -> list[TrainingSequence]:
    """Two sequences of each episode, as its workflow makes them: a thought, and a conversation with a tool."""
    generator, made = torch.Generator().manual_seed(0), []
    for episode in episodes:
        for turns in (episode["turns"][:1], episode["turns"][1:]):
            trained = torch.tensor([part for prompt, output in turns for part in [False] * prompt + [True] * output])
            zeros, ones = torch.zeros(len(trained), dtype=torch.long), torch.ones(len(trained))
            ids = torch.randint(vocabulary, (len(trained),), generator=generator)
            advantage = torch.randn(1, generator=generator) * ones
            made.append(TrainingSequence(ids, trained, -5 * ones, zeros, ones, advantage, ones, zeros))
    return made


def fixed(sequences: Sequence[TrainingSequence], budget: int, *, ordered: bool = False) -> list[Pack]:
    """Lay so many sequences into each pack, in the order that they come in."""
    count = max(1, budget // max(map(len, sequences)))
    cut = [sequences[start : start + count] for start in range(0, len(sequences), count)]
    return [prefix_tree(members if ordered else in_tree_order(members)) for members in cut]


def step_s(policy: Policy, sequences: Sequence[TrainingSequence], pack: PackAll) -> float:
    """Seconds of a training step whose micro-batches are made by `pack`."""
    minibatches.pack_sequences = pack  # type: ignore[attr-defined]
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    started = clock()
    policy.step(sequences)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started


def main() -> None:
    """Print a row for each budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, nargs="+", default=[4096, 2048, 1024])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="nano")
    args = parser.parse_args()
    torch.set_num_threads(1)  # more of them wait for each other where other work runs too
    model = Path(model_directory(args.model))
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    sequences = sequences_of(json.loads(TRACES.read_text())["library"][: args.episodes], vocabulary)
    lengths = sorted(map(len, sequences))
    print(f"{len(lengths)} sequences of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}")
    print("budget  micro-batches: fixed  packed  tokens/s: fixed  packed   gain")
    for budget in args.budget:
        policy = Policy(model, TrainerConfig(tokens_per_pack=budget, optimizer=OptimizerConfig(lr=1e-6)))
        ways: dict[str, PackAll] = {"fixed": fixed, "packed": pack_sequences}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for round_ in range(args.rounds + 1):
            for way, pack in ways.items():
                seconds = step_s(policy, sequences, pack)
                if round_:  # the first warms up
                    taken[way].append(seconds)
        counts = {way: len(pack(sequences, budget)) for way, pack in ways.items()}
        speed = {way: sum(lengths) / statistics.median(seconds) for way, seconds in taken.items()}
        print(
            f"{budget:6d} {counts['fixed']:21d} {counts['packed']:7d} {speed['fixed']:16,.0f} {speed['packed']:7,.0f}"
            f" {speed['packed'] / speed['fixed'] - 1:+6.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
