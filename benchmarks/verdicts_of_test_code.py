"""How long a verdict of test code takes, by what the tests compare, and a call that they make of the program.

    python benchmarks/verdicts_of_test_code.py [--backend docker] [--verdicts 40]

One verdict after another, the kinds in turn. Tests that compare objects run again, with other operands: see docs/grading.md.
"""

from __future__ import annotations

import argparse
import statistics
import time

import anyio

from agentrl.sandboxes import AssertTest, BackendName, Test, TestFile, grade, open_pool

SOURCE = """
class V:
    def __init__(self, x): self.x = x
    def __add__(self, other): return V(self.x + other.x)
    def __eq__(self, other): return isinstance(other, V) and self.x == other.x
def add(a, b): return a + b
"""
CALLS = 1_000
KINDS: dict[str, Test] = {
    "AssertTest, plain data": AssertTest(code="assert add(2, 2) == 4"),
    "unittest file, plain data": TestFile(
        code="import unittest\nfrom solution import add\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(add(2, 2), 4)",
        framework="unittest",
    ),
    "pytest file, plain data": TestFile(code="from solution import add\ndef test(): assert add(2, 2) == 4"),
    "AssertTest, objects": AssertTest(code="assert V(1) + V(2) == V(3)"),
    "pytest file, objects": TestFile(code="from solution import V\ndef test(): assert V(1) + V(2) == V(3)"),
    f"AssertTest, {CALLS:,} calls": AssertTest(code=f"assert all(add(i, 2) == i + 2 for i in range({CALLS}))"),
}


async def main(backend: BackendName, verdicts: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in KINDS}
    async with open_pool(backend=backend, size=2) as pool:
        for _ in range(verdicts):
            for name, test in KINDS.items():
                started = time.perf_counter()
                verdict = await grade(SOURCE, [test], pool=pool)
                took[name].append(1000 * (time.perf_counter() - started))
                assert verdict.passed, verdict.results
    print(f"{backend}, {verdicts} verdicts of each kind\n\n{'':28}{'median, ms':>12}{'p90, ms':>10}")
    for name, times in took.items():
        print(f"{name:28}{statistics.median(times):12.1f}{statistics.quantiles(times, n=10)[-1]:10.1f}")
    calls, one = (statistics.median(took[name]) for name in (f"AssertTest, {CALLS:,} calls", "AssertTest, plain data"))
    print(f"\na call takes {(calls - one) / CALLS:.3f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bubblewrap", choices=["docker", "bubblewrap"])
    parser.add_argument("--verdicts", type=int, default=40)
    options = parser.parse_args()
    anyio.run(main, options.backend, options.verdicts)
