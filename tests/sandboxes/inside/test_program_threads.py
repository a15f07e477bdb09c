"""Threads and signal handlers of a program's, which call the tests' functions or end such a call, leave no answer to be taken for another."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxPool, SandboxSpec, TestFile, grade, open_pool

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.soak]


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=10, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


PROGRAM = """
import queue, signal, threading
def timeout(seconds):
    def decorate(function):
        def within(*args):
            def ring(*_): raise TimeoutError
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try: return function(*args)
            finally: signal.setitimer(signal.ITIMER_REAL, 0)
        return within
    return decorate
def later(seconds, function): threading.Timer(seconds, function).start()
def double(x): return 2 * x
class Worker:
    def __init__(self):
        self.jobs = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()
    def work(self):
        while True:
            self.jobs.get()()
            self.jobs.task_done()
    def submit(self, job): self.jobs.put(job)
    def wait(self): self.jobs.join()
def in_threads(functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
TESTS = {
    "a handler that raises while a test's function is called": """
def test_slow():
    with pytest.raises(TimeoutError): timeout(0.2)(lambda: time.sleep(0.6))()
def test_fast():
    assert timeout(5)(lambda x: x)(3) == 3 and double(2) == 4
""",
    "a timer that is left over": """
def test_one(): later(0.1, lambda: None)
def test_two():
    time.sleep(0.3)
    assert [double(x) for x in range(20)] == [2 * x for x in range(20)]
""",
    "a thread that calls the test's functions": """
def test_it():
    worker, seen = Worker(), []
    for number in range(20): worker.submit(lambda number=number: seen.append(double(number)))
    worker.wait()
    assert seen == [2 * number for number in range(20)]
""",
    "many threads at once": """
def test_it():
    seen = []
    in_threads([lambda number=number: seen.append(double(number)) for number in range(20)])
    assert sorted(seen) == [2 * number for number in range(20)] and double(5) == 10
""",
}


@pytest.mark.parametrize("name", TESTS)
async def test_each_question_has_its_own_answer(pool: SandboxPool, name: str) -> None:
    code = "import time\nimport pytest\nfrom solution import *\n" + TESTS[name]
    verdict = await grade(PROGRAM, [TestFile(code=code)], pool=pool)
    assert verdict.passed, verdict.results
    wrong = await grade(PROGRAM.replace("2 * x", "3 * x"), [TestFile(code=code)], pool=pool)
    assert wrong.status == "wrong_answer", wrong.results
