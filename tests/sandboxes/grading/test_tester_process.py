"""Runs of test code that share a process: none finds anything of the one before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import anyio
import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxPool, SandboxSpec, TestFile, grade, open_pool
from agentrl.sandboxes.grading.function_tests import run_test_code

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.soak]

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


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    """The process is the same in every sandbox."""
    async with open_pool(SandboxSpec(limits=LIMITS), backend=bubblewrap, size=2) as pool:
        yield pool


ABANDONED_CALLS = {
    "an alarm": "def stop(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, stop)\nsignal.setitimer(signal.ITIMER_REAL, 0.2)\n"
    "with pytest.raises(TimeoutError): slow(0.5)",
    "a thread": "ThreadPoolExecutor(1).submit(slow, 0.5)\ntime.sleep(0.1)",
    "a process": "child = get_context('fork').Process(target=slow, args=[0.5])\nchild.start()\nchild.join(0.2)\nchild.terminate()\nchild.join()",
}
USES_OF_PROCESSES = {
    "calls side by side": "with ProcessPoolExecutor(2, get_context('fork')) as pool: assert [*pool.map(doubled, range(20))] == [*range(0, 40, 2)]",
    "a signal for the group": "hits = []\nsignal.signal(signal.SIGUSR1, lambda *_: hits.append(1))\nos.killpg(os.getpgrp(), signal.SIGUSR1)\n"
    "time.sleep(0.05)\nassert hits",
    "a handler that asks": "asked = []\nsignal.signal(signal.SIGALRM, lambda *_: asked.append(double(1)))\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\n"
    "assert slow(0.3) == 'late' and asked == [2]",
}
HONEST = f"""{SOURCE}
import time
def slow(s):
    time.sleep(s)
    return "late"
def double(x): return 2 * x
def total(xs):
    xs.sort()
    return sum(xs)
"""
"""Which changes an argument, so that there is another run for certain."""
TAKES_OVER = """
import json, sys, time
CODE = '''
import os, sys
wire = sys._getframe(2).f_locals["wire"]
for test, number, *_ in wire.receive_job()["replay"]["questions"]:
    wire.send(b"r", [test, number, "another"])
    wire.send(b"l", [test, number, 0, 60])
wire.send(b"f")
os._exit(0)
'''
class P:
    def __init__(self, x): pass
    def __add__(self, other): return P(0)
    def __eq__(self, other): return isinstance(other, P)
def slow(s):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "_answers"): frame = frame.f_back
    answers = frame.f_locals["self"]._answers
    time.sleep(s)
    job = {"name": "x", "code": CODE, "kind": "assert", "prelude": "", "entry_point": None, "candidate_names": [],
           "module": "solution", "names": [], "functions": [], "replay": None, "in_place": None}
    for line in (job, {"names": {}}): answers.write(json.dumps(line).encode() + b"\\n")
    answers.flush()
    time.sleep(0.2)
"""
"""It is equal to everything, and would have the run that finds this out say otherwise."""


async def processes_started(pool: SandboxPool, done: str, framework: Literal["pytest", "unittest"] = "pytest") -> int:
    """Grade an honest program by a test that does something before it compares; how many processes ran that test's code."""
    body = "\n".join(f"        {line}" for line in (*done.splitlines(), "assert P(1) + P(2) == P(3)"))
    code = f"import unittest\nfrom solution import P\nclass TestP(unittest.TestCase):\n    def test_p(self):\n{body}\n"
    async with pool.take(2) as (sandbox, test_sandbox):
        before = test_sandbox.runs
        deadline = anyio.current_time() + 30
        test = TestFile(code=code, framework=framework)
        results = await run_test_code(sandbox, test_sandbox, SOURCE, test, "p", LIMITS, deadline)
        assert all(result.passed for result in results), results
        return test_sandbox.runs - before


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


@pytest.mark.parametrize("use", ABANDONED_CALLS.values(), ids=ABANDONED_CALLS)
@pytest.mark.parametrize("is_last", [False, True])
async def test_a_call_that_a_test_gives_up_is_no_other_call_s(pool: SandboxPool, use: str, is_last: bool) -> None:
    """Neither in this run nor in the next one."""
    done = ["assert total([2, 1]) == 3", "assert P(1) + P(2) == P(3)"]
    await passes([*done, *use.splitlines()] if is_last else [*use.splitlines(), *done], pool)


@pytest.mark.parametrize("use", USES_OF_PROCESSES.values(), ids=USES_OF_PROCESSES)
async def test_processes_and_handlers_of_a_test_ask_in_turn(pool: SandboxPool, use: str) -> None:
    await passes(use.splitlines(), pool)


async def passes(lines: list[str], pool: SandboxPool) -> None:
    code = (
        "import os, pytest, signal, time\nfrom concurrent.futures import *\nfrom multiprocessing import get_context\n"
        "from solution import *\ndef doubled(x): return double(x)\ndef test_a():\n"
        + "\n".join(f"    {line}" for line in lines)
    )
    verdict = await grade(HONEST, [TestFile(code=code)], pool=pool)
    assert verdict.passed, verdict.results


async def test_no_answer_is_ever_a_job(pool: SandboxPool) -> None:
    """What a program has written ahead is still there when the tests' process takes the next run."""
    code = (
        "import pytest, signal\nfrom solution import P, slow\ndef stop(*_): raise TimeoutError\n"
        "def test_sum(): assert P(1) + P(2) == P(3)\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_slow(n):\n    signal.signal(signal.SIGALRM, stop)\n    signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "    try: slow(0.4)\n    except TimeoutError: pytest.skip('slow')\n"
    )
    async with pool.take(2) as (sandbox, test_sandbox):
        deadline = anyio.current_time() + 20
        results = await run_test_code(
            sandbox, test_sandbox, TAKES_OVER, TestFile(code=code), "t", LIMITS.but(timeout_s=1.5), deadline
        )
    assert not any(result.passed for result in results), results
