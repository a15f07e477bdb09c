"""Verdicts a second, for a trivial program with five tests, in one run on all cores.

    python benchmarks/sandbox_throughput.py        needs a Docker engine with the image agentrl/sandbox, and bubblewrap

docker run, a test       a new container for each of the five tests
docker run, a verdict    a new container for each verdict, which runs the five tests one after another
warm pool                sandboxes of a pool, reset after each verdict, the program started afresh for each test
plain subprocess         no isolation at all: `python3 main.py`, five times
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from agentrl.sandboxes import BackendName, IOTest, grade, open_pool
from agentrl.sandboxes.seams import DEFAULT_IMAGE

SOURCE = "print(2 * int(input()))\n"
TESTS = [IOTest(stdin=f"{n}\n", stdout=f"{2 * n}\n") for n in range(5)]
CORES = len(os.sched_getaffinity(0))
DOCKER_RUN = ["docker", "run", "--rm", "-i", "--network", "none", "--memory", "512m", "--cpus", "1", "--read-only"]

BACKENDS: tuple[BackendName, ...] = ("docker", "bubblewrap")

Verdict = Callable[[], Awaitable[bool]]


async def output(command: list[str], stdin: str) -> str:
    done = await anyio.run_process(command, input=stdin.encode(), stderr=subprocess.DEVNULL)
    return done.stdout.decode()


async def a_container_a_test() -> bool:
    command = [*DOCKER_RUN, DEFAULT_IMAGE, "python3", "-c", SOURCE]
    return all([await output(command, test.stdin) == test.stdout for test in TESTS])


async def a_container_a_verdict() -> bool:
    loop = 'while read -r line; do echo "$line" | python3 -c "$0"; done'
    printed = await output([*DOCKER_RUN, DEFAULT_IMAGE, "sh", "-c", loop, SOURCE], "".join(t.stdin for t in TESTS))
    return printed == "".join(test.stdout for test in TESTS)


def plain(program: Path, python: str) -> Verdict:
    async def verdict() -> bool:
        return all([await output([python, str(program)], test.stdin) == test.stdout for test in TESTS])

    return verdict


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


async def memory_of_a_sandbox(backend: BackendName, sandboxes: int = 4) -> float:
    """MB that one more idle sandbox takes. Read as root, which may look at them."""
    async with open_pool(backend=backend, size=sandboxes) as pool, pool.take(1):
        before = await anyio.to_thread.run_sync(memory_of_sandboxes_mb)
        started = pool.metrics.started
        async with pool.take(sandboxes - 1):
            after = await anyio.to_thread.run_sync(memory_of_sandboxes_mb)
    return (after - before) / (sandboxes - started) if sandboxes > started else float("nan")


async def pool_rate(backend: BackendName, seconds: float) -> tuple[float, float]:
    """Verdicts a second, and the mean time of a reset."""
    async with open_pool(backend=backend) as pool:

        async def verdict() -> bool:
            return (await grade(SOURCE, TESTS, pool=pool)).passed

        await rate(verdict, 0.5, CORES)
        result = await rate(verdict, seconds, 2 * CORES)
        return result, pool.metrics.reset_s / pool.metrics.resets


async def main(seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "main.py"
        program.write_text(SOURCE)
        rates: dict[str, list[float]] = {}
        resets: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, verdict in (
                ("docker run, a test", a_container_a_test),
                ("docker run, a verdict", a_container_a_verdict),
                ("plain subprocess", plain(program, "/usr/bin/python3")),
            ):
                rates.setdefault(name, []).append(await rate(verdict, seconds, CORES))
            for backend in BACKENDS:
                result, reset_s = await pool_rate(backend, seconds)
                rates.setdefault(f"warm pool, {backend}", []).append(result)
                resets.setdefault(backend, []).append(reset_s)
    median = {name: statistics.median(values) for name, values in rates.items()}
    cold, floor = median["docker run, a test"], median["plain subprocess"]
    print(f"{CORES} cores, {len(TESTS)} tests a verdict, medians of {rounds} rounds of {seconds:g} s\n")
    print(f"{'':24}{'verdicts/s':>12}{'× docker run, a test':>24}{'× plain subprocess':>22}")
    for name in sorted(median, key=lambda name: median[name]):
        print(f"{name:24}{median[name]:12.1f}{median[name] / cold:24.1f}{median[name] / floor:22.2f}")
    for backend in BACKENDS:
        values = resets[backend]
        memory_mb = await memory_of_a_sandbox(backend)
        print(
            f"\na reset with {backend} takes {1000 * statistics.median(values):.1f} ms, a sandbox {memory_mb:.1f} MB",
            end="",
        )
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    anyio.run(main, options.seconds, options.rounds)
