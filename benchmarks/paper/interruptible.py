"""What interrupting replies for new weights gains (AReaL, arXiv 2505.24298: 12 % and 17 % of the throughput).

    python benchmarks/paper/interruptible.py [--steps 15] [--rounds 3]

The same run twice in each round, in turn: as the product is, an update interrupts the replies in flight; or drained, new requests wait
while an update waits for the replies in flight to end. The workload has replies of long-tailed length (`long_tail_workflow.py`). Printed:
tokens that the engine made a second after the first steps, which fill the pipeline, and the seconds that a drained update waited.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

import agentrl
from agentrl.config import load_config
from agentrl.engine.client import SGLangEngine
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.run.view import RunView
from agentrl.system.tasks import Condition

SKIPPED = 3
WORKFLOW = Path(__file__).parents[1] / "long_tail_workflow.py"


@dataclass
class Drain:
    """Updates that wait for the replies in flight, and requests that wait for the update."""

    in_flight: int = 0
    updating: bool = False
    waited_s: list[float] = field(default_factory=list)
    changed: Condition = field(default_factory=Condition)


@contextmanager
def drained() -> Iterator[Drain]:
    """Have every engine drain before an update."""
    drain, generate, update = Drain(), SGLangEngine.generate, SGLangEngine.update_weights

    async def generate_between(engine: SGLangEngine, *args: Any, **settings: Any) -> Generation:
        await drain.changed.wait_for(lambda: not drain.updating)
        drain.in_flight += 1
        try:
            return await generate(engine, *args, **settings)
        finally:
            drain.in_flight -= 1
            drain.changed.notify_all()

    async def update_after(engine: SGLangEngine, *args: Any) -> float:
        drain.updating, began = True, time.perf_counter()
        try:
            await drain.changed.wait_for(lambda: not drain.in_flight)
            drain.waited_s.append(time.perf_counter() - began)
            return await update(engine, *args)
        finally:
            drain.updating = False
            drain.changed.notify_all()

    SGLangEngine.generate = generate_between  # type: ignore[method-assign, assignment]
    SGLangEngine.update_weights = update_after  # type: ignore[method-assign, assignment]
    try:
        yield drain
    finally:
        SGLangEngine.generate = generate  # type: ignore[method-assign]
        SGLangEngine.update_weights = update  # type: ignore[method-assign]


def tokens_per_s(directory: Path, steps: int) -> float:
    """Train once; tokens that the engine made a second, after the first steps."""
    settings = {
        "workflow": WORKFLOW,
        "tasks": directory / "train.jsonl",
        "model.path": NANO,
        "run_dir": directory / f"run-{time.time_ns()}",
        "steps": steps,
        "rollout.batch_size": 32,
        "rollout.max_concurrent": 64,
        "rollout.max_staleness": 4,
        "rollout.max_tokens": 64,
        "rollout.drop_uniform_groups": "false",
        "trainer.optimizer.lr": 1e-6,
        "trainer.checkpoint.every": 1000,
    }
    config = load_config((), {name: str(value) for name, value in settings.items()})
    run = anyio.run(lambda: agentrl.train(config, view=RunView(config)))
    if run.status != "finished":
        raise SystemExit(f"the run {config.run_dir} ended {run.status}")
    first, *later = run.metrics[min(SKIPPED, steps - 1) - 1 :]
    return float((later[-1]["tokens"] - first["tokens"]) / sum(step["step_s"] for step in later))


def main() -> None:
    """Run both ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps {args.steps}: the first step only fills the pipeline; give at least 2")
    gains = []
    with tempfile.TemporaryDirectory(prefix="agentrl-interruptible-") as name:
        lines = [json.dumps(task) + "\n" for task in distinct_tasks(2000, seed=1_000_000)]
        (Path(name) / "train.jsonl").write_text("".join(lines))
        print("round  interrupted  drained  gain  a drained update waited", flush=True)
        for number in range(1, args.rounds + 1):
            speed = tokens_per_s(Path(name), args.steps)
            with drained() as drain:
                waiting = tokens_per_s(Path(name), args.steps)
            gains.append(speed / waiting - 1)
            waited_s = statistics.fmean(drain.waited_s)
            print(f"{number:5d} {speed:9,.0f}/s {waiting:7,.0f}/s {gains[-1]:+5.0%}  {waited_s:.2f} s", flush=True)
    print(f"gain of interrupting: median {statistics.median(gains):+.0%}; the paper: +12 % and +17 %")


if __name__ == "__main__":
    main()
