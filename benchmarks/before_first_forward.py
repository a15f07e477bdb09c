"""Seconds from a trainer's command to step until its first forward pass: episodes read from the store, sequences made, packs laid out.

    python benchmarks/before_first_forward.py
    python benchmarks/before_first_forward.py --against ../other-checkout     this version and another in turn, and their ratio

The batch is made of random tokens: groups of multi-turn episodes that share a system prompt and their task, in a real store. Nothing
is computed by the model: its first forward pass ends the measurement. Each round of each version runs in a process of its own. The work
is done by one thread, so its CPU seconds are the time that it takes on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.record.end_reason import EndReason
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup

SYSTEM, TASK = 300, 60
"""Tokens of the system prompt, and of a task."""


class FirstForwardError(Exception):
    """The model was called."""


def record_batch(run_dir: Path, groups: int, group_size: int, turns: int) -> None:
    """Make a run with one batch of episodes that is ready to be trained on."""
    from agentrl.config import load_config
    from agentrl.models import NANO
    from agentrl.record.tokens import Generation, VersionSpan
    from agentrl.record.trajectory import TokenRecord
    from agentrl.run.run_directory import write_config
    from agentrl.store.outcome import Outcome
    from agentrl.store.store import Store

    run_dir.mkdir()
    config = load_config(
        (),
        {},
        run_dir=str(run_dir),
        model={"path": str(NANO)},
        rollout={"group_size": group_size, "batch_size": groups * group_size},
        trainer={"minibatches": 2, "mismatch_sequences": 0},
    )
    write_config(config)
    rng = random.Random(5)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(9, 470) for _ in range(count)]

    system = tokens(SYSTEM)
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks", config.model_dump_json())
        for group in range(groups):
            store.write([OpenGroup(group, 0, group)])
            task = tokens(TASK)
            for episode_index in range(group_size):
                record, ids, turn = TokenRecord(), system + task, None
                for number in range(turns):
                    output = tokens(rng.randint(20, 100))
                    logprobs = [-rng.random() for _ in output]
                    spans = [VersionSpan(0, 0, len(output))]
                    reply = Generation(output_ids=output, logprobs=logprobs, versions=spans, finish="stop")
                    turn = record.add(f"call-{number}", turn, ids, reply, 1.0)
                    ids = ids + output + tokens(30)
                outcome = Outcome(reason=EndReason.FINISHED, reward=rng.random(), metrics={}, record=record)
                store.write([InsertEpisode(group, episode_index, 0, outcome)])
            store.write([CloseGroup(group)])


def trainer_on(run_dir: Path, weights_dir: Path, groups: list[int]) -> tuple[Any, Callable[[], Any]]:
    """Return the trainer's process, and what makes it take a step on groups of a run."""
    from agentrl.trainer.command_loop import TrainerProcess

    try:
        from agentrl.store.batch_file import write_batch
    except ImportError:  # a checkout of before a step got its episodes in a file
        process = TrainerProcess(run_dir, weights_dir)  # type: ignore[arg-type]
        return process, lambda: process.step(groups)  # type: ignore[call-arg]
    from agentrl.run.run_directory import read_config

    episodes = write_batch(run_dir / "store.sqlite", groups, run_dir / "batch")
    process = TrainerProcess(read_config(run_dir), weights_dir)
    return process, lambda: process.step(groups, str(episodes))


def measure(groups: int, group_size: int, turns: int, repeats: int) -> dict[str, Any]:
    """Return the CPU seconds of each repeat, after one that warms up."""

    def reached(*args: Any) -> None:
        raise FirstForwardError

    with tempfile.TemporaryDirectory(prefix="agentrl-first-forward-") as folder:
        run_dir = Path(folder) / "run"
        record_batch(run_dir, groups, group_size, turns)
        process, step = trainer_on(run_dir, Path(folder) / "weights", list(range(groups)))
        process.load(None)
        held = getattr(
            process, "_policies", None
        )  # a checkout of before roles had policies of their own has one policy
        policy = getattr(process, "_policy", None) if held is None else held.by_role[""]
        policy.model.base_model.register_forward_pre_hook(reached)
        seconds = []
        for _ in range(repeats + 1):
            started = time.process_time()
            try:
                step()
            except FirstForwardError:
                seconds.append(time.process_time() - started)
            process._broken = None  # a step that ended in its middle, as it was meant to
        return {"seconds": seconds[1:]}


def in_checkout(checkout: Path, arguments: list[str]) -> list[float]:
    """Measure with the code of a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="agentrl-checkout-") as folder:
        package = Path(folder) / "agentrl"
        package.mkdir()
        for entry in (checkout / "agentrl").iterdir():
            (package / entry.name).symlink_to(entry.resolve())
        for name in ("envs", "sandboxes", "trainer", "workflows"):
            (package / name).symlink_to((checkout / name).resolve())
        command = [sys.executable, __file__, "--measure", *arguments]
        environment = {**os.environ, "PYTHONPATH": folder}
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    seconds: list[float] = json.loads(output.splitlines()[-1])["seconds"]
    return seconds


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout of agentrl, measured in turn with this one")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.groups, args.group_size, args.turns, args.repeats)))
        return
    sizes = {"--groups": args.groups, "--group-size": args.group_size, "--turns": args.turns, "--repeats": args.repeats}
    arguments = [text for name, value in sizes.items() for text in (name, str(value))]
    own, other, ratios = [], [], []
    for _ in range(args.rounds):
        own.append(statistics.median(in_checkout(Path(__file__).parents[1], arguments)))
        if args.against:
            other.append(statistics.median(in_checkout(args.against, arguments)))
            ratios.append(other[-1] / own[-1])
    print(f"{args.groups * args.group_size} episodes of {args.turns} turns: {statistics.median(own):.3f} CPU seconds")
    if args.against:
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{args.against}: {statistics.median(other):.3f} CPU seconds; {statistics.median(ratios):.2f} times as long ({spread})"
        )


if __name__ == "__main__":
    main()
