"""What answers made to be slow to read cost the host: the longest stall of the event loop and the peak memory, a case.

    python benchmarks/hostile_answers.py [--backend docker] [--cases 5]

--cases   the first few alone
stall     the longest step of the event loop, in CPU milliseconds of its thread
memory    peak resident memory above what it was before, with that of the process that compares, in MB
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.sandboxes import BackendName, Limits, SandboxSpec, grade, open_pool
from tests.sandboxes.grading.hostile_answers import (
    ANSWERS,
    OUTPUTS,
    answering,
    call_tests,
    measured,
    output_tests,
    printing,
)


async def main(backend: BackendName, count: int | None) -> None:
    cases = [(name, answering(answer), call_tests()) for name, answer in ANSWERS.items()]
    cases += [(f"printed: {name}", printing(output), output_tests()) for name, output in OUTPUTS.items()]
    worst_s, worst_bytes = 0.0, 0
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=2)), backend=backend, size=2) as pool:
        await grade("def f(): return 3", [call_tests()["call, long"]], pool=pool)  # imports, caches
        print(f"{'':50}{'test':16}{'status':16}{'stall, ms':>10}{'memory, MB':>12}{'time, s':>9}")
        for name, source, tests in cases[:count]:
            for kind, test in tests.items():
                started = time.perf_counter()
                with measured() as cost:
                    verdict = await grade(source, [test], pool=pool)
                took_s = time.perf_counter() - started
                worst_s, worst_bytes = max(worst_s, cost.stall_s), max(worst_bytes, cost.memory_bytes)
                figures = f"{1000 * cost.stall_s:10.1f}{cost.memory_bytes / 2**20:12.1f}{took_s:9.2f}"
                print(f"{name:50}{kind:16}{verdict.status:16}{figures}", flush=True)
                assert not verdict.passed
    print(f"{'the worst':82}{1000 * worst_s:10.1f}{worst_bytes / 2**20:12.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bubblewrap", choices=["docker", "bubblewrap"])
    parser.add_argument("--cases", type=int)
    options = parser.parse_args()
    anyio.run(main, options.backend, options.cases)
