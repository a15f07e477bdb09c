"""One program that wants what is not its own, tried: what it got, and what became of whoever came after it."""

from __future__ import annotations

import random

from agentrl.sandboxes import AssertTest, CallTest, IOTest, Limits, SandboxPool, Test, TestFile, grade

LIMITS = Limits(timeout_s=0.15, memory_mb=200, disk_mb=16, output_mb=1, processes=32)
PATIENT = LIMITS.changed(timeout_s=5)
"""For those who come after: whether they are served is the question, and not how busy the machine is."""
CALLS_MAIN = "\nif __name__ == '__main__': print(add(*map(int, input().split())))\n"
HONEST = "def add(a, b): return a + b\n"

LOOK = """
import os, resource
files = [os.path.join(folder, f) for folder in ("/sandbox", "/tmp", "/dev/shm") for f in os.listdir(folder)]
processes = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
objects = [line for kind in ("shm", "sem", "msg") for line in open(f"/proc/sysvipc/{kind}").readlines()[1:]]
queues = os.listdir("/dev/mqueue") if os.path.isdir("/dev/mqueue") else []
print(files, processes, objects, queues, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
"""Shows what of an earlier user's is left in a sandbox: files, processes, kernel objects, changed limits."""


def all_kinds_of_tests() -> list[Test]:
    """The same question in every form that the grader knows. The answers are new each time."""
    numbers = [random.randrange(1_000_000, 9_000_000) for _ in range(8)]
    (a, b, c, d, e, f, g, h) = numbers
    call = CallTest(function="add", args=[a, b], expected=a + b)
    printed = IOTest(stdin=f"{a} {c}\n", stdout=f"{a + c}\n")
    check = AssertTest(
        code=f"""
def check(candidate):
    assert abs(candidate({a}, {d}) - {a + d}) < 1e-6
    assert candidate({a}, {e}) in ({a + e},)
    assert all(map(lambda case: candidate(*case[0]) == case[1], [(({a}, {f}), {a + f})]))
    assert [{a + g}] == [candidate({a}, {g})]
""",
        entry_point="add",
    )
    assertions = AssertTest(code=f"assert add({b}, {c}) == {b + c}\nassert len({{add({b}, {d}), {b + d}}}) == 1")
    unit = TestFile(
        framework="unittest",
        code=f"""
import unittest
from solution import *
class TestAdd(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add({b}, {e}), {b + e})
    def test_close(self):
        self.assertAlmostEqual(add({b}, {f}), {b + f})
        self.assertTrue(add({b}, {f}) == {b + f})
""",
    )
    file = TestFile(
        code=f"""
import pytest
from solution import add
@pytest.mark.parametrize(("a", "b", "total"), [({b}, {g}, {b + g}), ({b}, {h}, {b + h})])
def test_sum(a, b, total):
    assert add(a, b) == pytest.approx(total)
    assert total in [add(a, b)]
"""
    )
    return [call, printed, check, assertions, unit, file]


async def trial(name: str, source: str, tests: list[Test], pool: SandboxPool) -> list[str]:
    """What is wrong: that the program was rewarded, or that its sandboxes are not as new and do not serve the next."""
    wrong = []
    verdict = await grade(source + CALLS_MAIN, tests, pool=pool)
    if len(verdict.results) < len(tests):  # a file of tests for a program that does not load gives one
        wrong.append(f"{name}: {len(tests)} tests have {len(verdict.results)} results")
    wrong += [f"{name} was rewarded: {result}" for result in verdict.results if result.passed]
    honest = await grade(HONEST + CALLS_MAIN, all_kinds_of_tests()[:2], pool=pool, limits=PATIENT)
    if not honest.passed:
        wrong.append(f"after {name}: {honest.results}")
    async with pool.take(2) as sandboxes:
        for sandbox in sandboxes:
            done = await sandbox.run_python(code=LOOK, limits=PATIENT)
            if done.stdout.decode() != f"[] [] [] [] {LIMITS.open_files}\n":
                wrong.append(f"after {name}: {done}")
    return wrong
