"""The latency of honest verdicts alone and beside hostile neighbours in the same pool, as a ratio in one run.

    python benchmarks/fair_verdicts.py [--backend docker] [--verdicts 60]

One worker grades honest programs, alone and then while another keeps the pool's other places busy with fork bombs, and programs that
take memory, disk, output and CPU time without end. The pool has a place for each. Rounds alternate, so that a busy machine slows
both alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import cycle
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.sandboxes import BackendName, IOTest, Limits, SandboxPool, SandboxSpec, grade, open_pool
from tests.sandboxes.grading.adversaries import against_the_place

HOSTILE = ("a fork bomb", "a memory bomb", "a full disk", "a gigabyte of output", "an endless loop", "a thread bomb")
TESTS = [IOTest(stdin="20 22\n", stdout="42\n")]
HONEST = "print(sum(map(int, input().split())))\n"
ROUNDS = 3


async def latencies(pool: SandboxPool, verdicts: int) -> list[float]:
    """Seconds of each honest verdict, waiting for a sandbox included."""
    found = []
    for _ in range(verdicts):
        started = time.perf_counter()
        assert (await grade(HONEST, TESTS, pool=pool)).passed
        found.append(time.perf_counter() - started)
    return found


async def main(backend: BackendName, verdicts: int) -> None:
    sources = cycle([against_the_place(port=1, canary="/nowhere")[name] for name in HOSTILE])
    limits = Limits(timeout_s=0.5, memory_mb=200, disk_mb=16, output_mb=1, processes=32)
    alone: list[float] = []
    beside: list[float] = []
    async with open_pool(SandboxSpec(limits=limits), backend=backend, size=2) as pool:

        async def attack() -> None:
            while True:
                await grade(next(sources), TESTS, pool=pool)

        await latencies(pool, 5)
        for _ in range(ROUNDS):
            alone += await latencies(pool, verdicts // ROUNDS)
            async with anyio.create_task_group() as group:
                group.start_soon(attack)
                beside += await latencies(pool, verdicts // ROUNDS)
                group.cancel_scope.cancel()
    print(f"{'':10}{'alone, ms':>12}{'beside, ms':>12}{'ratio':>8}")
    for name, at in (("p50", 49), ("p99", 98)):
        first, second = (statistics.quantiles(values, n=100, method="inclusive")[at] for values in (alone, beside))
        print(f"{name:10}{1000 * first:12.1f}{1000 * second:12.1f}{second / first:8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bubblewrap", choices=["docker", "bubblewrap"])
    parser.add_argument("--verdicts", type=int, default=90)
    options = parser.parse_args()
    anyio.run(main, options.backend, options.verdicts)
