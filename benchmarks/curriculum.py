"""Steps to the goal on calculator tasks of mixed difficulty, with a curriculum and without, on several seeds.

    python benchmarks/curriculum.py [--steps 40] [--seeds 1 2 3]

A third of the 96 tasks are sums of 2 to 4 terms, which the nano model can learn to work out; the others have 7 to 10 terms, which it
never gets right. Groups whose rewards are all equal stay in the batch (`drop_uniform_groups = false`), so a step is 32 episodes in every
run, and only the order of tasks differs. Printed: the first step at which the mean reward of the groups on the sums of 2 to 4 terms that
started within the last five steps reached 0.9, and the share of all groups that had such a task. That mean is over tasks as they are
drawn: the curriculum draws a task less often after a group without any reward, which favours it a little.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics
from agentrl.store.store import Store

ROOT = Path(__file__).parents[1]
GOAL = 0.9
WINDOW = 5
"""Steps over which the reward is a mean."""
MIN_GROUPS = 6
"""Groups in the window, at least."""
WITHIN_REACH, BEYOND = 32, 64
"""Tasks of each kind; those within reach come first."""
ORDERS = ("shuffled", "difficulty")
MAX_RUN_S = 1800


def write_tasks(path: Path, seed: int) -> None:
    """Write tasks of both kinds, with pairwise different expressions."""
    import reasoning_gym

    tasks: list[dict[str, object]] = []
    for count, terms in ((WITHIN_REACH, (2, 4)), (BEYOND, (7, 10))):
        bounds = {"min_terms": terms[0], "max_terms": terms[1], "min_digits": 1, "max_digits": 3}
        entries = reasoning_gym.create_dataset("chain_sum", size=10 * count, seed=seed, **bounds)
        tasks += list({entry["metadata"]["expression"]: entry for entry in entries}.values())[:count]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))


def groups_of(run_dir: Path) -> list[tuple[int, int, float]]:
    """Version, task and mean reward of every group that has ended."""
    query = (
        "SELECT g.version, g.task, AVG(e.reward) FROM groups g JOIN episodes e ON e.group_id = g.id AND e.reason = 'finished'"
        " WHERE g.state != 'open' GROUP BY g.id"
    )
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        return store.read(lambda db: db.execute(query).fetchall())


def goal_reached(groups: list[tuple[int, int, float]], steps: int) -> int | None:
    """The first step at which the window's mean reached the goal; versions of which groups may still run do not count."""
    for step in range(WINDOW, steps):
        means = [mean for version, task, mean in groups if step - WINDOW <= version < step and task < WITHIN_REACH]
        if len(means) >= MIN_GROUPS and sum(means) / len(means) >= GOAL:
            return step
    return None


def train(tasks: Path, run_dir: Path, order: str, seed: int, steps: int) -> None:
    """Train until the goal is reached, or for so many steps."""
    settings: dict[str, object] = {
        "model": {"path": str(NANO)},
        "tasks": str(tasks),
        "run_dir": str(run_dir),
        "steps": steps,
        "seed": seed,
        "data": {"order": order},
        "rollout": {
            "batch_size": 32,
            "group_size": 4,
            "max_staleness": 1,
            "max_concurrent": 32,
            "max_tokens": 64,
            "drop_uniform_groups": False,
        },
        "trainer": {"optimizer": {"lr": 4e-4, "warmup_steps": 3}, "checkpoint": {"every": 1000}},
    }
    path = run_dir.with_suffix(".json")
    path.write_text(json.dumps(settings))
    words = [sys.executable, __file__, "--one", str(path)]
    with run_dir.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    deadline = time.monotonic() + MAX_RUN_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(2)
            trained = len(read_metrics(run_dir))
            if trained > WINDOW and goal_reached(groups_of(run_dir), trained - 1):
                process.send_signal(signal.SIGINT)
                process.wait(300)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main() -> None:
    """Run both orders on every seed, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(args.one)
        return
    print("seed  order        goal at step   groups within reach, of all   reward at the end   seconds", flush=True)
    with tempfile.TemporaryDirectory(prefix="agentrl-curriculum-") as scratch:
        for seed in args.seeds:
            tasks = Path(scratch) / f"tasks-{seed}.jsonl"
            write_tasks(tasks, seed)
            for order in ORDERS:
                run_dir, started = Path(scratch) / f"{order}-{seed}", time.perf_counter()
                train(tasks, run_dir, order, seed, args.steps)
                trained, groups = len(read_metrics(run_dir)), groups_of(run_dir)
                reached = goal_reached(groups, trained - 1)
                within = [mean for version, task, mean in groups if task < WITHIN_REACH]
                last = [mean for version, task, mean in groups if task < WITHIN_REACH and version >= trained - WINDOW]
                print(
                    f"{seed:4d}  {order:11s} {reached or f'not in {trained}':>13} {len(within):9d} of {len(groups):3d}"
                    f" ({len(within) / len(groups):.2f}) {sum(last) / max(1, len(last)):20.3f}"
                    f" {time.perf_counter() - started:12.0f}",
                    flush=True,
                )


def run_one(settings: Path) -> None:
    """Train one run, whose settings are in a file, until it ends or a signal ends it."""
    import anyio

    import agentrl
    from agentrl.config import RunConfig

    config = RunConfig(**json.loads(settings.read_text()))
    anyio.run(lambda: agentrl.train(config, workflow=ROOT / "workflows" / "calculator.py"))


if __name__ == "__main__":
    main()
