"""What a weight update costs, on two servers under 64 requests: mode × engine, from shared memory or disk.

    python benchmarks/weight_update.py [--updates 20] [--engine embedded sglang] [--dtype bfloat16]

For each: the pause of one update, its share of the run, tokens whose KV cache was computed again, versions a reply, and how far
recorded logprobs are from an independent float32 re-scoring under the weights of each token's version. In mode `in_place` they
must differ: its tokens attend to a KV cache of older weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import torch
from anyio.to_thread import run_sync as in_thread
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import agentrl.workflows
from agentrl.config import EngineConfig, load_config
from agentrl.engine.launch import launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.models import NANO
from agentrl.record.tokens import Generation


def make_versions(directory: Path, count: int) -> list[Path]:
    """Weights that differ from the nano model by 1 % noise a version."""
    generator = torch.Generator().manual_seed(0)
    base = load_file(NANO / "model.safetensors")
    paths = []
    for version in range(count):
        path = directory / f"v{version}"
        path.mkdir(parents=True)
        tensors = {
            n: t.float() * (1 + 0.01 * version * torch.randn(t.shape, generator=generator)) for n, t in base.items()
        }
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(NANO / "config.json", path)
        paths.append(path)
    return paths


@torch.no_grad()
def differences(paths: list[Path], results: list[tuple[list[int], Generation]]) -> list[float]:
    """|recorded − re-scored logprob| of every token."""
    models = []
    for path in paths:
        model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager")
        model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
        model.tie_weights()
        models.append(model.eval())
    found: list[float] = []
    for prompt, generation in results:
        ids = torch.tensor([prompt + generation.output_ids])
        for span in generation.versions:
            scored = torch.log_softmax(models[span.version](ids).logits[0].float(), -1)
            for position in range(span.start, span.end):
                own = float(scored[len(prompt) + position - 1, generation.output_ids[position]])
                found.append(abs(own - generation.logprobs[position]))
    return found


async def measure(
    config: EngineConfig, paths: list[Path], updates: int, every_s: float, replies: int, tokens: int
) -> dict[str, Any]:
    """One run of updates under load."""
    results: list[tuple[list[int], Generation]] = []
    pauses: list[float] = []
    recomputed = 0
    with tempfile.TemporaryDirectory() as scratch:
        async with launch_engine(NANO, config, log=Path(scratch) / "engine.log") as engine:
            await engine.update_weights(paths[0], 0)
            progress: dict[int, int] = {}
            stop = anyio.Event()

            async def keep_asking(index: int) -> None:
                count = 0
                while not stop.is_set():
                    prompt = [1, 2, 3, 4 + index, 5 + count % 300]
                    progress[index] = len(prompt)

                    def on_progress(ids: list[int], size: int = len(prompt)) -> None:
                        progress[index] = size + len(ids)

                    sampling = Sampling(max_new_tokens=tokens)
                    watch = on_progress if index % 8 == 0 else None
                    results.append((prompt, await engine.generate(prompt, sampling, f"{index}.{count}", watch)))
                    count += 1

            async with anyio.create_task_group() as group:
                for index in range(replies):
                    group.start_soon(keep_asking, index)
                await anyio.sleep(1)
                started = time.perf_counter()
                for update in range(updates):
                    await anyio.sleep(every_s)
                    if config.pause_mode != "in_place":
                        # Every eighth reply is watched token by token; the others are as long.
                        recomputed += 8 * sum(progress.get(i, 0) for i in range(0, replies, 8))
                    pauses.append(
                        await engine.update_weights(paths[1 + update % (len(paths) - 1)], 1 + update % (len(paths) - 1))
                    )
                wall_s = time.perf_counter() - started
                stop.set()
    found = sorted(await in_thread(differences, paths, results))
    lost = sum(generation.finish not in ("stop", "length") for _, generation in results)
    unversioned = sum(sum(s.end - s.start for s in g.versions) != len(g.output_ids) for _, g in results)
    return {
        "pause_ms_median": round(1000 * statistics.median(pauses), 1),
        "pause_ms_max": round(1000 * max(pauses), 1),
        "share_of_run": round(sum(pauses) / wall_s, 4),
        "tokens_recomputed_an_update": round(recomputed / updates),
        "versions_a_reply_mean": round(statistics.mean(len(g.versions) for _, g in results), 2),
        "versions_a_reply_max": max(len(g.versions) for _, g in results),
        "replies": len(results),
        "tokens": sum(len(g.output_ids) for _, g in results),
        "tokens_per_s": round(sum(len(g.output_ids) for _, g in results) / wall_s),
        "lost": lost,
        "tokens_without_version": unversioned,
        "logprob_difference": {
            name: float(f"{found[min(len(found) - 1, int(share * len(found)))]:.2g}")
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        },
    }


async def main() -> None:
    """Print one line of JSON a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--every-s", type=float, default=1.0, help="time between updates, as a training step takes")
    parser.add_argument("--replies", type=int, default=64, help="requests at once, a multiple of 8")
    parser.add_argument("--tokens", type=int, default=500, help="of a reply, at most")
    parser.add_argument("--engine", nargs="+", default=["embedded", "sglang"], choices=["embedded", "sglang"])
    parser.add_argument("--mode", nargs="+", default=["retract", "in_place", "abort"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of SGLang")
    parser.add_argument("--where", nargs="+", default=["shm"], choices=["shm", "disk"], help="where new weights lie")
    args = parser.parse_args()
    for where in args.where:
        root = "/dev/shm" if where == "shm" else None
        with tempfile.TemporaryDirectory(dir=root) as directory:
            paths = await in_thread(make_versions, Path(directory), 4)
            for kind in args.engine:
                for mode in args.mode:
                    if kind == "sglang":
                        settings = Path(agentrl.workflows.__path__[0]) / "sglang_cpu.toml"
                        base = load_config(settings).engine
                        changes = {"flags": {**base.flags, "dtype": args.dtype}, "pause_mode": mode, "servers": 2}
                        config = base.model_copy(update=changes)
                    else:
                        config = EngineConfig(servers=2, pause_mode=mode)
                    row = await measure(config, paths, args.updates, args.every_s, args.replies, args.tokens)
                    print(
                        json.dumps({"engine": kind, "mode": mode, "where": where, "dtype": args.dtype, **row}),
                        flush=True,
                    )


if __name__ == "__main__":
    anyio.run(main)
