"""Peak memory of logprobs and entropies with their gradients: in chunks, against all logits at once, in one run.

    python benchmarks/logprob_memory.py [--tokens 4096] [--vocabulary 151936] [--width 256]

Each way runs in a process of its own, forward and backward over the head alone; the peak is the growth of its resident set
over what it was before. The two ways' logprobs and gradients are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import agentrl.trainer.model.packed_model as packed_model
from agentrl.trainer.model.packed_model import PackedModel, logprobs_and_entropies


def measured(way: str, tokens: int, vocabulary: int, width: int) -> dict[str, Any]:
    """One way's peak, seconds, and sums to compare."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width, num_hidden_layers=1, num_attention_heads=4
    )
    model = PackedModel(Qwen3ForCausalLM(config))
    head = model.model.get_output_embeddings()
    hidden = torch.randn(tokens, width, requires_grad=True)
    targets, temperatures = torch.randint(vocabulary, (tokens,)), torch.ones(tokens)
    head.weight.grad = torch.zeros_like(head.weight)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if way == "plain":
        logprobs, entropy = logprobs_and_entropies(head(hidden).float(), targets, temperatures)
    else:
        logprobs, entropy = model.head_logprobs(hidden, targets, temperatures)
    logprobs.sum().backward()
    assert hidden.grad is not None
    return {
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "seconds": time.perf_counter() - started,
        "logprob": float(logprobs.detach().mean()),
        "entropy": float(entropy.detach().mean()),
        "gradient": float(hidden.grad.norm()),
    }


def main() -> None:
    """Print both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--way", choices=["plain", "chunks"])
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measured(args.way, args.tokens, args.vocabulary, args.width)))
        return
    found = {}
    for way in ("plain", "chunks"):
        words = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        shown = subprocess.run(words, check=True, capture_output=True, text=True, timeout=900)
        found[way] = json.loads(shown.stdout.splitlines()[-1])
        print(f"{way:7s} peak {found[way]['peak_mib']:8,.0f} MiB  {found[way]['seconds']:6.1f} s")
    for name in ("logprob", "entropy", "gradient"):
        if abs(found["plain"][name] - found["chunks"][name]) > 1e-4 * abs(found["plain"][name]):
            raise SystemExit(f"the two ways differ in {name}: {found}")
    matrix = args.tokens * args.vocabulary * 4 / 2**20
    print(
        f"one float32 matrix of [{args.tokens}, {args.vocabulary}] is {matrix:,.0f} MiB; chunks hold {packed_model.LOGITS_AT_ONCE:,} numbers"
    )
    ratio = found["plain"]["peak_mib"] / found["chunks"]["peak_mib"]
    print(f"{ratio:.1f} times less memory, {found['chunks']['seconds'] / found['plain']['seconds']:.2f} of the time")


if __name__ == "__main__":
    main()
