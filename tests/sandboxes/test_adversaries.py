"""No program gets a reward it has not earned, and none harms the host or the next user of its box."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    BoxSpec,
    CallTest,
    IOTest,
    Limits,
    SandboxPool,
    Test,
    TestFile,
    judge,
    open_pool,
)
from tests.sandboxes.adversaries import adversaries

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

LIMITS = Limits(timeout_s=0.15, memory_mb=200, disk_mb=16, output_mb=1, processes=32)
CALLS_MAIN = "\nif __name__ == '__main__': print(add(*map(int, input().split())))\n"
HONEST = "def add(a, b): return a + b\n"


def all_kinds_of_tests() -> list[Test]:
    """The same question in every form that the judge knows. The answers are new each time."""
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
""",
    )
    return [call, printed, check, assertions, unit, file]


@pytest.fixture
async def pools(backend: BackendName) -> AsyncIterator[list[SandboxPool]]:
    """One for each half of the programs: most of their time they wait for a limit."""
    async with AsyncExitStack() as stack:
        spec = BoxSpec(limits=LIMITS)
        yield [await stack.enter_async_context(open_pool(spec, backend=backend, size=2)) for _ in range(2)]


async def test_no_program_is_rewarded_or_harms_the_next(
    pools: list[SandboxPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("the host's own")
    monkeypatch.setenv("AGENTRL_SECRET", "the host's own")

    async def try_all(programs: list[tuple[str, str]], pool: SandboxPool) -> None:
        for name, source in programs:
            verdict = await judge(source + CALLS_MAIN, all_kinds_of_tests(), pool=pool)
            assert len(verdict.results) >= 6, name  # a file of tests for a program that does not load gives one
            rewarded = [result for result in verdict.results if result.passed]
            assert not rewarded, f"{name} was rewarded: {rewarded}"
            honest = await judge(HONEST + CALLS_MAIN, all_kinds_of_tests()[:2], pool=pool)
            assert honest.passed, f"after {name}: {honest.results}"
            await assert_as_new(pool, name)
        honest = await judge(HONEST + CALLS_MAIN, all_kinds_of_tests(), pool=pool)
        assert honest.passed, honest.results

    with socket.create_server(("127.0.0.1", 0)) as listener:
        programs = list(adversaries(port=listener.getsockname()[1], canary=str(canary)).items())
        assert len(programs) >= 60
        async with anyio.create_task_group() as group:
            for half, pool in enumerate(pools):
                group.start_soon(try_all, programs[half::2], pool)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()
    assert canary.read_text() == "the host's own"
    assert list(tmp_path.iterdir()) == [canary]


async def assert_as_new(pool: SandboxPool, name: str) -> None:
    """Nothing of an earlier user is left in any box: no file, no process, no kernel object, no changed limit."""
    look = """
import os, resource
files = [os.path.join(folder, f) for folder in ("/box", "/tmp", "/dev/shm") for f in os.listdir(folder)]
processes = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
objects = [line for kind in ("shm", "sem", "msg") for line in open(f"/proc/sysvipc/{kind}").readlines()[1:]]
queues = os.listdir("/dev/mqueue") if os.path.isdir("/dev/mqueue") else []
print(files, processes, objects, queues, os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    async with pool.take(2) as boxes:
        for box in boxes:
            done = await box.run_python(code=look)
            assert done.stdout.decode() == f"[] [] [] [] 0 {LIMITS.open_files}\n", (name, done)
