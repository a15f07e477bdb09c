"""What a user gains, in one table: `python benchmarks/bench.py` (15 minutes), or `--full` with the sizes that docs/benchmarks.md has.

Each row is a program of this directory, run alone, one after the other, with the figure that is found in what it prints. What a program
needs and is not there is named in its row. `--only NAME ...` runs the rows whose programs have these names.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("agentrl-sdk", "torch", "transformers", "openai")
LIMIT_S = 7200


class Row(NamedTuple):
    """A row of the table."""

    gain: str
    program: str
    small: str
    """Options of the short run."""
    full: str
    finds: str
    """A regular expression, whose groups are the figures."""
    says: str
    """What is said of them."""


NUMBER = r"([-\d.,]+)"
ROWS = (
    Row(
        "time to a held-out reward of 0.9",
        "time_to_goal.py",
        "--seeds 1 --settings",
        "--settings data.order=difficulty rollout.drop_uniform_groups=false",
        rf'"setting": "as it is", "seconds": {NUMBER}, "steps": {NUMBER}, "episodes": {NUMBER}',
        "{} s of training, {} steps, {} episodes",
    ),
    Row(
        "gain of asynchrony",
        "async_vs_sync.py",
        "--steps 10 --rounds 1",
        "",
        rf"median: S = {NUMBER} .*ε = {NUMBER} ",
        "{} times the episodes/s; ε = {}",
    ),
    Row(
        "pause of a weight update, embedded engine",
        "weight_update.py",
        "--engine embedded --mode retract --updates 5 --replies 32 --tokens 200",
        "--engine embedded --mode retract",
        rf'"pause_ms_median": {NUMBER}',
        "{} ms",
    ),
    Row(
        "a model call at turn 1, 50, 200",
        "growth.py",
        "turns 1 50 200",
        "turns 1 10 50 100 200",
        rf"\n +1 +{NUMBER}\n(?:.*\n)* +50 +{NUMBER}\n(?:.*\n)* +200 +{NUMBER}\n +exponent +{NUMBER}",
        "{}, {}, {} ms of the proxy's CPU; exponent {}",
    ),
    Row(
        "episodes at once in one process",
        "growth.py",
        "episodes 100 1000",
        "episodes 100 1000 10000",
        rf"\n +([\d,]+) +{NUMBER} +{NUMBER} +{NUMBER} .*\n +exponent",
        "{} of them: {} kB each; lag of the event loop p50 {} ms, p99 {} ms",
    ),
    Row(
        "episodes/s with worker processes",
        "rollout_workers.py",
        "--rounds 1",
        "",
        rf"workers = 0: {NUMBER} .*\n.*workers = 1: {NUMBER} .*\n.*workers = 2: {NUMBER} ",
        "{} without, {} with one, {} with two",
    ),
    Row(
        "prefix trees against a sequence a call",
        "tree_training.py",
        "--rounds 1",
        "",
        rf"branching +by call +\S+ +\S+ +{NUMBER} +\S+ +{NUMBER}",
        "{} times fewer tokens, {} times less time",
    ),
    Row(
        "verdicts/s on model-written code",
        "sandbox_throughput.py",
        "--seconds 1 --rounds 1",
        "",
        rf"(?s)(?=.*code.py, docker +{NUMBER})(?=.*code.py, bubblewrap +{NUMBER})",
        "{} and {} in Docker and bubblewrap",
    ),
)


def measured(row: Row, options: str) -> str:
    """Run a row's program, and return what is said of its figures, or why there are none."""
    command = [sys.executable, f"benchmarks/{row.program}", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(row.finds, done.stdout)
    if found is None:
        return f"none: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
    return row.says.format(*[figure for figure in found.groups() if figure is not None])


def machine() -> str:
    """The date, the machine and the versions of what is measured, in a line."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    cpu = (
        re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    )
    where = f"{os.cpu_count()} cores{f' of {cpu[1]}' if cpu else ''}, Python {platform.python_version()}"
    return f"{date.today()}, {where}, {', '.join(versions)}; load {os.getloadavg()[0]:.1f} before"


def main() -> None:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the sizes of docs/benchmarks.md, which take hours")
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    args = parser.parse_args()
    print(f"{machine()}\n\n| what | figure | command | s |\n| --- | --- | --- | --- |", flush=True)
    for row in ROWS:
        if not args.only or row.program in args.only:
            options, started = row.full if args.full else row.small, time.perf_counter()
            figure = measured(row, options)
            command = f"python benchmarks/{row.program} {options}".strip()
            print(f"| {row.gain} | {figure} | `{command}` | {time.perf_counter() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
