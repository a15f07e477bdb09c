"""What Docker and bubblewrap both promise: limits hold, a user leaves nothing to the next one, and a program gets its verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    CallTest,
    Checker,
    EndReason,
    IOTest,
    Language,
    Limits,
    SandboxPool,
    SandboxSpec,
    TestFile,
    grade,
    open_pool,
)
from agentrl.sandboxes.limit_check import ATTEMPTS, LIMITS
from tests.real_sandboxes import working_backend
from tests.sandboxes.test_reset import HONEST, PREAMBLE

pytestmark = pytest.mark.anyio

TIMED = ("timeout_s = 1", "cpu_s = 0.5", "cpus = 1")
PATIENT = 60.0
"""The time of a program that is ended by another limit, on a machine however busy."""
IN_THE_SOAK = ("hoards page tables", "fills the buffers of sockets", "makes empty files until it may not")
"""Attempts that take seconds."""


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    return working_backend(request.param)


@pytest.fixture(scope="module")
async def pool(backend: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=LIMITS), backend=backend, size=2) as pool:
        yield pool


async def test_limits_hold(pool: SandboxPool) -> None:
    tried = [one for one in ATTEMPTS if one.limit not in TIMED and one.does not in IN_THE_SOAK]
    assert {one.limit.partition(" = ")[0] for one in tried} >= {
        "memory_mb",
        "processes",
        "disk_mb",
        "file_mb",
        "open_files",
        "output_mb",
        "network",
        "read-only root",
        "no privileges",
        "what nothing counts",
        "nothing outlives a run",
    }
    async with pool.take() as (sandbox,):
        for attempt in tried:
            await sandbox.clear()
            done = await sandbox.run_python(code=attempt.code, limits=attempt.limits.but(timeout_s=PATIENT))
            assert attempt.holds(done), (attempt.does, done)


async def test_time_is_bounded(pool: SandboxPool) -> None:
    deaf = next(one for one in ATTEMPTS if one.does == "ignores every signal and loops")
    four = "import os\nos.fork(); os.fork()\nwhile True: pass"
    async with pool.take() as (sandbox,):
        for code, limits in (
            ("import time\ntime.sleep(1000)", LIMITS.but(timeout_s=0.2)),
            (deaf.code, LIMITS.but(timeout_s=0.5)),
            (four, LIMITS.but(timeout_s=PATIENT, cpu_s=0.5)),
        ):
            done = await sandbox.run_python(code=code, limits=limits)
            assert done.end_reason is EndReason.TIMEOUT, (code, done)
        assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


LEAVES = """
from pathlib import Path
for f in FOLDERS:
    attempt(Path(f, 'left').write_text, 'x'); chmod(f, 0)
for key in range(1, 5): libc.shmget(key, 4096, 0o1666)
if os.fork() == 0:
    os.setsid(); __import__('time').sleep(1000)
"""
LOOKS = """
print([f for f in FOLDERS if os.listdir(f)], [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())],
      open('/proc/sysvipc/shm').readlines()[1:])
"""


async def test_a_user_leaves_nothing_to_the_next(pool: SandboxPool) -> None:
    """test_reset.py has what else a user may do to its place."""
    lost = pool.metrics.lost
    async with pool.take(2) as sandboxes:
        for sandbox in sandboxes:
            await sandbox.start(["sleep", "1000"], limits=LIMITS.but(timeout_s=600))
            assert (await sandbox.run_python(code=PREAMBLE + LEAVES, limits=LIMITS.but(timeout_s=PATIENT))).ok
    async with pool.take(2) as sandboxes:
        for sandbox in sandboxes:
            done = await sandbox.run_python(code=PREAMBLE + LOOKS, limits=LIMITS.but(timeout_s=PATIENT))
            assert done.stdout == b"[] [] []\n", done
            done = await sandbox.run_python(code=HONEST, limits=LIMITS.but(timeout_s=PATIENT))
            assert done.stdout == b"hello fine\n", done
    assert pool.metrics.lost == lost


ENDS = {
    "print(1)": "passed",
    "print(2)": "wrong_answer",
    "": "wrong_answer",
    "raise ValueError('no')": "runtime_error",
    "print(1)\nraise SystemExit(1)": "runtime_error",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "runtime_error",
    "x = (": "runtime_error",
    "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**20)": "memory_limit",
    "while True: print('x' * 1000)": "output_limit",
}


async def test_each_verdict_on_a_program(pool: SandboxPool) -> None:
    test = IOTest(stdout="1")
    limits = LIMITS.but(timeout_s=20)
    found = {source: (await grade(source, [test], pool=pool, limits=limits)).results[0] for source in ENDS}
    assert {source: result.status for source, result in found.items()} == ENDS
    assert "ValueError: no" in found["raise ValueError('no')"].message
    assert found["print(1)"].peak_memory_bytes > 2**20
    endless = await grade("while True: pass", [test, test], pool=pool, limits=LIMITS.but(timeout_s=0.3), fail_fast=True)
    assert [result.status for result in endless.results] == ["time_limit", "not_run"]
    language = Language(file="main.sh", build=("sh", "-n", "main.sh"), run=("sh", "main.sh"))
    assert (await grade("echo 1", [test], pool=pool, language=language, limits=limits)).passed
    assert (await grade("if", [test], pool=pool, language=language, limits=limits)).status == "build_error"
    broken = IOTest(stdout="1", compare=Checker(source="import nosuch"))
    assert (await grade("print(1)", [broken], pool=pool, limits=limits)).status == "checker_error"


async def test_each_kind_of_test_tells_right_from_wrong(pool: SandboxPool) -> None:
    tests = [
        CallTest(function="add", args=[1, 2], expected=3),
        AssertTest(code="assert add(2, 3) == 5"),
        TestFile(code="from solution import add\ndef test(): assert add(3, 4) == 7"),
        TestFile(
            code="import unittest\nfrom solution import add\nclass T(unittest.TestCase):\n"
            " def test(self): self.assertEqual(add(4, 5), 9)",
            framework="unittest",
        ),
    ]
    limits = Limits(timeout_s=20, memory_mb=LIMITS.memory_mb, disk_mb=32, file_mb=8, output_mb=1, processes=16)
    right = await grade("def add(a, b): return a + b", tests, pool=pool, limits=limits)
    assert right.passed, right.results
    wrong = await grade("def add(a, b): return a - b", tests, pool=pool, limits=limits)
    assert [result.status for result in wrong.results] == ["wrong_answer"] * 4, wrong.results
    always = "class Same(int):\n __eq__ = lambda *_: True\n __hash__ = int.__hash__\ndef add(a, b): return Same()"
    cheat = await grade(always, tests, pool=pool, limits=limits)
    assert not any(result.passed for result in cheat.results), cheat.results
