"""Verdicts a second of `workflows/code.py`, beside plain subprocesses, in turn in one run on all cores.

    python benchmarks/sandbox_throughput.py        needs a Docker engine with the image agentrl/sandbox, and bubblewrap

plain subprocess     no isolation at all: `python3 main.py`, once a test, as graders do that use `subprocess.run`
code.py, BACKEND     what the workflow calls once a reply is there: warm sandboxes, reset after each verdict
pytest, BACKEND      the same for a test file of trust `inside`, one at a time: milliseconds a verdict
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.sandboxes import BackendName
from agentrl.testing import ScriptedModel, scripted_episode
from agentrl.workflows.code import ProgramTask, graded

SOURCE = "print(2 * int(input()))\n"
TESTS = [{"kind": "io", "stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in range(5)]
CLASS = (
    "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n    def total(self): return self.a + self.b\n"
)
FILE = "import pytest\nfrom solution import Pair\n\ndef test_total():\n    assert Pair(1, 2).total() == 3\n"
CORES = len(os.sched_getaffinity(0))
BACKENDS: tuple[BackendName, ...] = ("docker", "bubblewrap")

Verdict = Callable[[], Awaitable[bool]]


def plain(program: Path, python: str) -> Verdict:
    async def one(stdin: str) -> str:
        done = await anyio.run_process([python, str(program)], input=stdin.encode(), stderr=subprocess.DEVNULL)
        return done.stdout.decode()

    async def verdict() -> bool:
        return all([await one(test["stdin"]) == test["stdout"] for test in TESTS])

    return verdict


@asynccontextmanager
async def workflow(backend: BackendName, source: str, tests: list[dict[str, Any]]) -> AsyncIterator[Verdict]:
    """The workflow's own call, with the sandboxes of a run that lasts as long as the context."""
    task = ProgramTask.model_validate({"prompt": "?", "tests": tests}).code
    config = RunConfig.model_validate({"sandbox": {"backend": backend}})
    async with scripted_episode(ScriptedModel([]), config=config) as episode:

        async def verdict() -> bool:
            found = await graded(episode, task, source, task.tests, fail_fast=True)
            return found is not None and found.passed

        yield verdict


async def rate(verdict: Verdict, seconds: float, at_once: int) -> float:
    """Verdicts a second, `at_once` at a time."""
    deadline, done = time.perf_counter() + seconds, 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            assert await verdict()
            done += 1

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(worker)
    return done / (time.perf_counter() - started)


def memory_of_sandboxes_mb() -> float:
    """Memory of all processes of sandboxes on this machine in MB, pages that processes share counted once."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"agentrl.sandboxes.inside" in (folder / "cmdline").read_bytes():
                rollup = (folder / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


async def main(seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "main.py"
        program.write_text(SOURCE)
        rates: dict[str, list[float]] = {}
        times_ms: dict[str, list[float]] = {}
        memory_mb: dict[str, float] = {}
        for _ in range(rounds):
            rates.setdefault("plain subprocess", []).append(
                await rate(plain(program, "/usr/bin/python3"), seconds, CORES)
            )
            for backend in BACKENDS:
                async with workflow(backend, SOURCE, TESTS) as verdict:
                    await rate(verdict, 0.5, CORES)
                    rates.setdefault(f"code.py, {backend}", []).append(await rate(verdict, seconds, 2 * CORES))
                    memory_mb[backend] = await anyio.to_thread.run_sync(memory_of_sandboxes_mb) / CORES
                async with workflow(backend, CLASS, [{"kind": "file", "code": FILE}]) as verdict:
                    await verdict()
                    times_ms.setdefault(backend, []).append(1000 / await rate(verdict, seconds, 1))
    median = {name: statistics.median(values) for name, values in rates.items()}
    floor = median["plain subprocess"]
    print(f"{CORES} cores, {len(TESTS)} tests a verdict, medians of {rounds} rounds of {seconds:g} s\n")
    print(f"{'':24}{'verdicts/s':>12}{'× plain subprocess':>22}")
    for name in sorted(median, key=lambda name: median[name]):
        print(f"{name:24}{median[name]:12.1f}{median[name] / floor:22.2f}")
    for backend in BACKENDS:
        print(
            f"pytest, {backend}: {statistics.median(times_ms[backend]):.0f} ms; a warm sandbox: {memory_mb[backend]:.1f} MB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    anyio.run(main, options.seconds, options.rounds)
