"""Kill a run again and again, at random, and prove from its store that it lost nothing and did nothing twice.

    python benchmarks/crash_test.py                       60 kills, then an undisturbed run to compare with
    python benchmarks/crash_test.py --dataset stream      the same for tasks whose number nobody knows

Each kill is a SIGKILL to the main process, the trainer, an engine, or all of them, at a random moment: while it starts, in
the middle of steps, checkpoints and weight updates. A main process that was killed is started again with --resume. At the
end every task of every epoch must be trained on once, or dropped with a reason; `agentrl audit` says so from the store.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from agentrl.audit import audit
from agentrl.envs.calculator import distinct_tasks
from agentrl.models import NANO

ROOT = Path(__file__).parents[1]
AGENTRL = [sys.executable, "-m", "agentrl.cli"]
TARGETS = {"main": 4, "trainer": 2, "engine": 2, "all": 2}
"""What is killed, and how often relative to the others."""
IN_START = 0.15
"""Share of the kills that come before the first step of a life."""
LIFE_TIMEOUT_S = 300.0
WORKFLOW = """
import random
import anyio
from agentrl import Episode

async def run(episode: Episode) -> float:
    '''The calculator, with a tool that takes its time, so that every kill finds episodes in the middle.'''
    env, rng = episode.env("agentrl/Calculator-v0"), random.Random(episode.seed)
    await env.reset(seed=episode.seed, options=episode.task)
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools
        )
        await anyio.sleep(rng.uniform(0.0, 0.8))
        await env.step(reply.choices[0].message)
    return env.total_reward
"""
GROUP_SIZE, GROUPS = 4, 4


def command(folder: Path, run_dir: Path, args: argparse.Namespace) -> list[str]:
    """The run: small steps, a checkpoint every third."""
    source = f"python:{folder / 'stream.py'}:tasks" if args.dataset == "stream" else str(folder / "train.jsonl")
    settings = {
        "tasks": source,
        "run_dir": run_dir,
        "model.path": NANO,
        "steps": 100_000,
        "data.epochs": args.epochs,
        "rollout.batch_size": GROUP_SIZE * GROUPS,
        "rollout.group_size": GROUP_SIZE,
        "rollout.max_concurrent": 16,
        "rollout.max_tokens": 96,
        "trainer.lr": 5e-5,
        "trainer.checkpoint_every": 3,
    }
    return [
        *AGENTRL,
        "train",
        str(folder / "slow_calculator.py"),
        *[f"--{key}={value}" for key, value in settings.items()],
    ]


def processes(main: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes of a run, by what they are."""
    found: dict[str, list[psutil.Process]] = {"main": [main], "trainer": [], "engine": []}
    for child in main.children():
        try:
            words = " ".join(child.cmdline())
        except psutil.Error:
            continue
        for kind, module in (("trainer", "agentrl.trainer"), ("engine", "agentrl.engine")):
            if module in words:
                found[kind].append(child)
    found["all"] = [process for kind in ("main", "trainer", "engine") for process in found[kind]]
    return found


def lines(path: Path) -> int:
    """Lines of a file, 0 if it is not there."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def disturbed(first: list[str], run_dir: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Run to the end through so many kills; how often each target was hit."""
    hits: Counter[str] = Counter()
    while True:
        resumed = (run_dir / "store.sqlite").exists()
        words = [*AGENTRL, "train", "--resume", str(run_dir)] if resumed else first
        with (run_dir.parent / "output.log").open("ab") as log:
            marked = {**os.environ, "AGENTRL_CRASH_TEST": str(run_dir)}
            main = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, env=marked)
        begun, before = time.monotonic(), lines(run_dir / "metrics.jsonl")
        while main.poll() is None:
            if hits.total() >= kills:
                if main.wait(LIFE_TIMEOUT_S) != 0:
                    raise SystemExit(f"the run failed; {run_dir.parent}/output.log says why")
                return hits
            if rng.random() < IN_START:
                time.sleep(rng.uniform(0, 8))
            else:
                while lines(run_dir / "metrics.jsonl") == before and main.poll() is None:
                    if time.monotonic() - begun > LIFE_TIMEOUT_S:
                        raise SystemExit(f"no step within {LIFE_TIMEOUT_S:g} s; {run_dir.parent}/output.log")
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 4))
            begun, before = time.monotonic(), lines(run_dir / "metrics.jsonl")
            target = rng.choices(list(TARGETS), list(TARGETS.values()))[0]
            try:
                victims = processes(psutil.Process(main.pid))[target]
            except psutil.Error:
                continue
            for victim in victims:
                try:
                    os.kill(victim.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if victims:
                hits[target] += 1
                found = audit(run_dir) if (run_dir / "store.sqlite").exists() else None
                print(
                    f"kill {hits.total():3d}: {target:8s} after step {before}, {found and found.trained} tasks trained on"
                )
                if found and found.violations:
                    raise SystemExit("\n".join(found.violations))
            if target in ("main", "all"):
                main.wait(30)
        if main.returncode == 0:
            raise SystemExit(f"the run ended after {hits.total()} kills; give it more --tasks or --epochs")
        if main.returncode != -signal.SIGKILL:
            raise SystemExit(f"the run ended with {main.returncode}; {run_dir.parent}/output.log says why")


def left_behind(run_dir: Path) -> list[str]:
    """Processes of the killed lives that are still there: all inherit the variable that names the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AGENTRL_CRASH_TEST") == str(run_dir):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def evaluated(run_dir: Path, folder: Path) -> tuple[float, float]:
    """(mean reward, its standard error) of the newest checkpoint on held-out tasks."""
    checkpoint = max((run_dir / "checkpoints").iterdir())
    words = [*AGENTRL, "eval", "workflows/calculator.py", "--model", str(checkpoint), "--json"]
    done = subprocess.run(
        [*words, "--tasks", str(folder / "eval.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    shown = json.loads(done.stdout)
    low, high = shown["mean_reward_95"]
    return shown["mean_reward"], (high - low) / (2 * 1.96)


def main() -> None:
    """Kill, audit, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=180)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--dataset", choices=["list", "stream"], default="list", help="tasks in a file, or from a generator"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-comparison", action="store_true", help="leave the undisturbed run out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-crash-") as scratch:
        report = crash_test(Path(scratch), args)
    print(json.dumps(report, indent=2))


def crash_test(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The whole test in `folder`; its figures. SystemExit when anything is lost or doubled."""
    for name, count, seed in (("train", args.tasks, 1), ("eval", 300, 999)):
        tasks = distinct_tasks(count, seed=seed)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "stream.py").write_text(
        "import json\nfrom pathlib import Path\n"
        "def tasks():\n    for line in (Path(__file__).parent / 'train.jsonl').open():\n        yield json.loads(line)\n"
    )
    (folder / "slow_calculator.py").write_text(WORKFLOW)
    run_dir = folder / "killed" / "run"
    run_dir.parent.mkdir()
    started = time.monotonic()
    hits = disturbed(command(folder, run_dir, args), run_dir, args.kills, random.Random(args.seed))
    found = audit(run_dir)
    if found.violations:
        raise SystemExit("\n".join(found.violations))
    if alive := left_behind(run_dir):
        raise SystemExit("processes outlived the run:\n" + "\n".join(alive))
    expected = args.tasks * args.epochs
    accounted = found.trained + sum(found.dropped.values())
    if not found.tasks == accounted == expected:
        raise SystemExit(f"{expected} tasks were to be handed out, {found.tasks} were, {accounted} came to an end")
    report: dict[str, Any] = {
        "kills": dict(hits),
        "lives": found.lives,
        "wall_s": round(time.monotonic() - started),
        "steps": found.batches,
        "tasks": found.tasks,
        "trained": found.trained,
        "dropped": found.dropped,
        "lost": expected - accounted,
        "doubled": 0,
        "tokens": found.tokens,
        "tokens_not_generated_again": found.replayed_tokens,
    }
    if not args.no_comparison:
        calm = folder / "calm" / "run"
        calm.parent.mkdir()
        started = time.monotonic()
        subprocess.run(command(folder, calm, args), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=7200)
        report["undisturbed_wall_s"] = round(time.monotonic() - started)
        (mean, error), (calm_mean, calm_error) = evaluated(run_dir, folder), evaluated(calm, folder)
        report |= {"held_out": mean, "held_out_undisturbed": calm_mean}
        report["difference_in_standard_errors"] = (mean - calm_mean) / math.hypot(error, calm_error)
    return report


if __name__ == "__main__":
    main()
