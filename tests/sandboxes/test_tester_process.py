"""Runs of test code that share a process: none finds anything of the one before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import anyio
import pytest

from agentrl.sandboxes import BackendName, BoxSpec, Limits, SandboxPool, TestFile, open_pool
from agentrl.sandboxes.function_tests import run_test_code

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

LIMITS = Limits(timeout_s=5, memory_mb=300)
SOURCE = """
class P:
    def __init__(self, x): self.x = x
    def __add__(self, other): return P(self.x + other.x)
    def __eq__(self, other): return isinstance(other, P) and self.x == other.x
    def __hash__(self): return hash(self.x)
"""
STATE = {
    "memory": "import json\nassert not hasattr(json, 'mark')\njson.mark = 1",
    "files": "import os\nassert not os.path.exists('/tmp/mark')\nopen('/tmp/mark', 'w').close()",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=[30]).start()",
}
PROCESSES = {
    "a server": "import socket, subprocess, sys\n"
    "server = socket.create_server(('127.0.0.1', 8123))\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'], pass_fds=[server.fileno()])",
    "a daemon": "import os, time\nassert not os.path.exists('/tmp/daemon')\n"
    "if os.fork() == 0:\n os.setsid()\n while True:\n  open('/tmp/daemon', 'w').close()\n  time.sleep(0.001)",
}
OUTPUT = "import os\nos.write(2, b'x' * 40_000_000)"


@pytest.fixture
async def pool(backend: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(BoxSpec(limits=LIMITS), backend=backend, size=2) as pool:
        yield pool


async def processes_started(pool: SandboxPool, done: str, framework: Literal["pytest", "unittest"] = "pytest") -> int:
    """Grade an honest program by a test that does something before it compares; how many processes ran that test's code."""
    body = "\n".join(f"        {line}" for line in (*done.splitlines(), "assert P(1) + P(2) == P(3)"))
    code = f"import unittest\nfrom solution import P\nclass TestP(unittest.TestCase):\n    def test_p(self):\n{body}\n"
    async with pool.take(2) as (box, test_box):
        before = test_box.runs
        deadline = anyio.current_time() + 30
        test = TestFile(code=code, framework=framework)
        results = await run_test_code(box, test_box, SOURCE, test, "p", LIMITS, deadline)
        assert all(result.passed for result in results), results
        return test_box.runs - before


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
@pytest.mark.parametrize("done", STATE.values(), ids=STATE)
async def test_runs_share_a_process_and_nothing_in_it(
    pool: SandboxPool, done: str, framework: Literal["pytest", "unittest"]
) -> None:
    assert await processes_started(pool, done, framework) == 1


@pytest.mark.parametrize("done", PROCESSES.values(), ids=PROCESSES)
async def test_what_a_run_leaves_running_ends_before_the_next(pool: SandboxPool, done: str) -> None:
    assert await processes_started(pool, done) > 1


async def test_each_run_may_print_what_a_run_may(pool: SandboxPool) -> None:
    assert await processes_started(pool, OUTPUT, "unittest") > 1
