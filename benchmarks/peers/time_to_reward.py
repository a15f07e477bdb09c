"""Time to a held-out reward: agentrl beside what a user would pick instead, in turn, on one job.

    python benchmarks/peers/time_to_reward.py [--rounds 3] [--only agentrl trl ...] [--lr trl=1e-3]

The nano model learns to use a calculator: 8 tasks of 8 attempts a step, two optimizer steps on them, AdamW, PPO's clipped loss, the
prompt token by token the same. Each system runs a program that its user would write (`with_*.py`), in an environment of its own
(`scripts/install_peers.sh`), and keeps a checkpoint every second step. When it has ended, one judge samples 200 held-out tasks with each
checkpoint (`job.py`): the first that reaches the goal counts, and what had been used when it was written. So no evaluation is in any
figure. Each system has the best learning rate of those tried (`Peer.lr`). Torch and JAX have one thread, as agentrl's processes.

seconds: of training, the sum of its steps. whole: from the start of the program to the checkpoint. CPU: user and system of all processes.
tokens: those that the policy generated for it. memory: the largest, of all processes. lines: code of the user's program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from installed import PEERS
from job import held_out_reward, write_model, write_tasks
from process_usage import UsageMonitor

HERE = Path(__file__).parent
UV = Path.home() / ".cache/agentrl/uv/bin"
"""Where scripts/install_uv.sh puts it; SkyRL's server starts its engine with it."""
MAX_RUN_S = 1800
EPISODES = 64
"""Of a step."""


class Progress(NamedTuple):
    """A checkpoint."""

    path: Path
    written_at: float
    seconds: float
    """Of the training steps until then."""
    tokens: int
    """Generated for these steps."""


@dataclass(frozen=True)
class Peer:
    """A system."""

    program: str
    lr: float
    """The best of those that were tried."""
    checkpoints: Callable[[Path], Iterator[Progress]]
    environment: str = ""
    """Its folder of `PEERS`; "": this Python."""
    package: str = "agentrl-sdk"
    arguments: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return PEERS / self.environment / "bin/python" if self.environment else Path(sys.executable)

    @property
    def lines(self) -> int:
        """Lines of its user's code, without blanks, comments and the program's docstring."""
        code = (HERE / self.program).read_text().split('"""', 2)[2].splitlines()
        return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code)

    def version(self) -> str:
        """The package with its version."""
        show = f"import importlib.metadata as m; print('{self.package}', m.version('{self.package}'))"
        return subprocess.run([self.python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def agentrl_checkpoints(out: Path) -> Iterator[Progress]:
    """Those of a run directory."""
    rows = read_rows(out / "metrics.jsonl")
    for path in sorted(out.glob("checkpoints/step-*")):
        step = int(path.name.removeprefix("step-"))
        seconds = sum(row["step_s"] for row in rows[:step])
        yield Progress(path, (path / "checkpoint.json").stat().st_mtime, seconds, rows[step - 1]["tokens"])


def trl_checkpoints(out: Path) -> Iterator[Progress]:
    """Those of TRL, whose step is an optimizer step: a row with lengths for each batch, which is two of them."""
    for path in sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        rows = json.loads((path / "trainer_state.json").read_text())["log_history"]
        seconds = sum(row["step_time"] for row in rows if "step_time" in row)
        tokens = sum(EPISODES * row.get("completions/mean_length", 0) for row in rows)
        yield Progress(path, (path / "model.safetensors").stat().st_mtime, seconds, round(tokens))


def skyrl_checkpoints(out: Path) -> Iterator[Progress]:
    """Those that the program had the server keep."""
    rows = read_rows(out / "metrics.jsonl")
    for path in sorted(out.glob("checkpoints/**/kept-*.tar.gz")):
        step = int(path.name.removeprefix("kept-").partition(".")[0])
        seconds = sum(row["step_s"] for row in rows[:step])
        yield Progress(path, path.stat().st_mtime, seconds, rows[step - 1]["tokens"])


SYSTEMS = {
    "agentrl": Peer("with_agentrl.py", 2e-4, agentrl_checkpoints),
    "agentrl-sync": Peer("with_agentrl.py", 4e-4, agentrl_checkpoints, arguments=("0",)),
    "trl": Peer("with_trl.py", 4e-4, trl_checkpoints, "trl", "trl"),
    "skyrl-tx": Peer("with_skyrl_tx.py", 3e-3, skyrl_checkpoints, "skyrl-tx", "skyrl-tx"),
}
"""`agentrl-sync` is `rollout.max_staleness = 0`; `agentrl` has its default."""


class Cost(NamedTuple):
    """What a system needed to reach the goal, or for all of its steps."""

    seconds: float
    whole_s: float
    cpu_s: float
    tokens: int
    memory_mib: float


def run(peer: Peer, job: Path, out: Path, steps: int, lr: float, seed: int) -> tuple[float, UsageMonitor]:
    """Run a system to its end; returns when it started and what it used.

    Raises:
        SystemExit: It failed.
    """
    words = [job / "model", job / "train.jsonl", out, steps, lr, seed, *peer.arguments]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(job / "datasets"),
        "JAX_PLATFORMS": "cpu",
        "VIRTUAL_ENV": str(peer.python.parents[1]),
        "PATH": f"{UV}:{os.environ['PATH']}",
    }
    log = out.with_suffix(".log")
    with log.open("w") as file:
        started = time.time()
        process = subprocess.Popen(
            [str(peer.python), str(HERE / peer.program), *map(str, words)],
            cwd=job,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        monitor = UsageMonitor(process.pid)
        try:
            code = process.wait(MAX_RUN_S)
        finally:
            monitor.stop()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise SystemExit(f"{peer.program} ended with code {code}: {log.read_text()[-3000:]}")
    return started, monitor


def measure(
    name: str, number: int, job: Path, held_out: list[dict[str, Any]], args: argparse.Namespace
) -> tuple[Cost, bool]:
    """Run a system, judge its checkpoints, and print what it needed; returns that and whether it reached the goal."""
    peer, out = SYSTEMS[name], job / f"{name}-{number}"
    started, monitor = run(peer, job, out, args.steps, args.lr.get(name, peer.lr), number)
    rewards = []
    for progress in peer.checkpoints(out):
        rewards.append(held_out_reward(job / "model", progress.path, held_out))
        cpu_s, memory = monitor.until(progress.written_at)
        cost = Cost(progress.seconds, progress.written_at - started, cpu_s, progress.tokens, memory / 2**20)
        if rewards[-1] >= args.goal:
            break
    reached = rewards[-1] >= args.goal
    curve = " ".join(f"{reward:.2f}" for reward in rewards)
    print_row(name, number, cost, f"{'' if reached else 'not reached: '}{curve}  load {os.getloadavg()[0]:.1f}")
    return cost, reached


def print_row(name: str, number: Any, cost: Cost, said: str) -> None:
    """Print a line of the table."""
    figures = f"{cost.seconds:8.1f} {cost.whole_s:7.1f} {cost.cpu_s:7.1f} {cost.tokens:8,.0f} {cost.memory_mib:7,.0f}"
    print(f"{name:13s} {number:>6} {figures} {SYSTEMS[name].lines:6d}  {said}", flush=True)


def learning_rate(word: str) -> tuple[str, float]:
    """Read SYSTEM=LEARNING_RATE."""
    name, _, value = word.partition("=")
    if name not in SYSTEMS:
        raise ValueError(word)
    return name, float(value)


def main() -> None:
    """Run every system in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, metavar="NAME")
    parser.add_argument("--steps", type=int, default=16, help="of a run, an even number")
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--held-out", type=int, default=200, help="tasks of the judge")
    parser.add_argument("--lr", nargs="+", type=learning_rate, default=[], metavar="NAME=LEARNING_RATE")
    args = parser.parse_args()
    args.lr = dict(args.lr)
    torch.set_num_threads(1)
    absent = [name for name in args.only if not SYSTEMS[name].python.exists()]
    for name in absent:
        print(f"{name} is not installed: scripts/install_peers.sh {SYSTEMS[name].environment}", flush=True)
    names = [name for name in args.only if name not in absent]
    versions = sorted({SYSTEMS[name].version() for name in names})
    print(f"{datetime.datetime.now():%Y-%m-%d}, {os.cpu_count()} cores; {', '.join(versions)}; goal {args.goal}")
    with tempfile.TemporaryDirectory(prefix="agentrl-peers-") as scratch:
        job = Path(scratch)
        write_model(job / "model")
        held_out = write_tasks(job / "train.jsonl", args.held_out)
        print(f"held-out reward before: {held_out_reward(job / 'model', job / 'model', held_out):.2f}")
        print(
            "system         round  seconds   whole     CPU   tokens  memory  lines  held-out reward of the checkpoints"
        )
        costs: dict[str, list[tuple[Cost, bool]]] = {name: [] for name in names}
        for number in range(1, args.rounds + 1):
            for name in names:
                costs[name].append(measure(name, number, job, held_out, args))
    for name, found in costs.items():
        columns = list(zip(*(cost for cost, _ in found), strict=True))
        ranges = ", ".join(
            f"{key} {min(values):,.0f} to {max(values):,.0f}" for key, values in zip(Cost._fields, columns, strict=True)
        )
        reached = sum(reached for _, reached in found)
        print_row(name, "median", Cost(*map(median, columns)), f"reached {reached} of {len(found)}; {ranges}")


if __name__ == "__main__":
    main()
