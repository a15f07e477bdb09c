"""Episodes a second with the workflow in the main process, and in one and two worker processes.

The engine answers at once, so that the rest is measured: proxy, client, channel and record. An episode is three calls of 32
tokens; `--think-ms` adds computation in Python to each, as a workflow that scores or parses has it.

    python benchmarks/rollout_workers.py --think-ms 10
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from agentrl.config import RunConfig
from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.models import NANO
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan
from agentrl.rollout.open_runner import open_runner
from agentrl.rollout.workflow import load_workflow

WORKFLOW = """
import time

async def run(episode):
    messages = [{"role": "user", "content": "1 + 1 ="}]
    for _ in range(3):
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
        messages += [{"role": "assistant", "content": reply.choices[0].message.content}, {"role": "user", "content": "+ 1 ="}]
        until = time.perf_counter() + episode.task["think_ms"] / 1000
        while time.perf_counter() < until:
            pass
    return 1.0
"""
TOKENS = 32


class Instant:
    """An engine that answers at once, always the same."""

    version = 0
    has_grammar = False
    takes_images = False
    vocabulary = None

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        partial: PartialGeneration | None = None,
        adapter: str = "",
    ) -> Generation:
        """Return 32 tokens."""
        return Generation(
            output_ids=[25] * TOKENS, logprobs=[-0.5] * TOKENS, versions=[VersionSpan(0, 0, TOKENS)], finish="length"
        )

    def end_session(self, session: str) -> None:
        """Forget nothing: nothing is known."""

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """There are no weights."""
        return 0.0

    async def pause(self, mode: PauseMode) -> None:
        """It never runs."""

    async def resume(self) -> None:
        """It never runs."""

    async def health(self) -> None:
        """It is well."""


async def episodes_per_s(workers: int, args: argparse.Namespace, directory: Path) -> float:
    """The speed of one setting."""
    workflow = directory / "workflow.py"
    values = {"workflow": str(workflow), "model": {"path": str(NANO)}, "rollout": {"workers": workers}}
    config = RunConfig.model_validate(values)
    slots = anyio.Semaphore(args.concurrent)
    async with open_runner(config, load_workflow(workflow), Instant(), logs=directory, say=print) as runner:

        async def one(seed: int) -> None:
            async with slots:
                outcome = await runner.run({"think_ms": args.think_ms}, seed)
            assert outcome.status == "finished", outcome.error

        async def many(count: int) -> None:
            async with anyio.create_task_group() as group:
                for seed in range(count):
                    group.start_soon(one, seed)

        await many(4 * max(1, workers))  # what is imported on first use
        started = time.perf_counter()
        await many(args.episodes)
        return args.episodes / (time.perf_counter() - started)


async def main(args: argparse.Namespace) -> None:
    """Measure each setting in turn, several times."""
    speeds: dict[int, list[float]] = {0: [], 1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as directory:
        (Path(directory) / "workflow.py").write_text(WORKFLOW)
        for _ in range(args.rounds):
            for workers, measured in speeds.items():
                measured.append(await episodes_per_s(workers, args, Path(directory)))
    for workers, measured in speeds.items():
        shown = ", ".join(f"{speed:.0f}" for speed in measured)
        print(f"rollout.workers = {workers}: {statistics.median(measured):.0f} episodes/s (rounds: {shown})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--think-ms", type=float, default=0.0, help="computation after each call")
    parser.add_argument("--rounds", type=int, default=3)
    anyio.run(main, parser.parse_args())
