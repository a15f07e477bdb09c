"""A training step of a random Qwen3 of 0.5 B parameters: tokens a second, memory, and model FLOPs utilisation.

    python benchmarks/step_speed.py                                    on a GPU
    python benchmarks/step_speed.py --layers 2 --width 256   to see that it runs, without a GPU too

Unbranched sequences of random tokens, of which the second half is trained on; mixed precision with recomputed activations, one
forward-and-backward pass, which gives the proximal logprobs too, then the optimizer. Model FLOPs are 6·parameters·tokens,
attention's left out; utilisation is their share of the device's peak.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.config.trainer import OptimizerConfig, TrainerConfig
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import Policy

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16, by a part of the GPU's name (NVIDIA's data sheets)."""


def batch(count: int, length: int, vocabulary: int) -> list[TrainingSequence]:
    """Sequences that share nothing."""
    made = []
    for _ in range(count):
        trained = torch.arange(length) >= length // 2
        zeros, ones = torch.zeros(length, dtype=torch.long), torch.ones(length)
        ids = torch.randint(vocabulary, (length,))
        made.append(TrainingSequence(ids, trained, -11 * ones, zeros, ones, torch.randn(1) * ones, ones, zeros))
    return made


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens-per-pack", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=3 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64,
        num_key_value_heads=max(1, args.width // 128),
        head_dim=64,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory(prefix="agentrl-speed-") as folder:
        Qwen3ForCausalLM(config).save_pretrained(folder)
        policy = Policy(
            Path(folder),
            TrainerConfig(
                precision="mixed",
                recompute_activations=True,
                tokens_per_pack=args.tokens_per_pack,
                optimizer=OptimizerConfig(lr=1e-6),
            ),
        )
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    seconds = []
    for step in range(args.steps + 1):
        sequences = batch(args.sequences, args.length, args.vocabulary)
        started = time.perf_counter()
        policy.step(sequences)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if step:  # the first compiles
            seconds.append(time.perf_counter() - started)
    tokens, taken = args.sequences * args.length, sorted(seconds)[len(seconds) // 2]
    print(
        f"{parameters / 1e6:,.0f} M parameters, {tokens:,} tokens a step: {taken:.2f} s, {tokens / taken:,.0f} tokens/s"
    )
    if not torch.cuda.is_available():
        print(
            f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB; no peak FLOP/s is known for a CPU"
        )
        return
    name = torch.cuda.get_device_name()
    print(f"{name}: peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    if peak:
        print(f"model FLOPs utilisation {6 * parameters * tokens / taken / peak:.1%} of {peak / 1e12:,.0f} TFLOP/s")


if __name__ == "__main__":
    main()
