"""What Docker and bubblewrap both promise: limits hold, and each program gets its verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import (
    BackendName,
    EndReason,
    ExecResult,
    IOTest,
    Language,
    Limits,
    SandboxPool,
    SandboxSpec,
    grade,
    open_pool,
    open_sandbox,
)
from tests.real_sandboxes import as_an_ordinary_user, working_backend

pytestmark = pytest.mark.anyio
LIMITS = Limits(timeout_s=1.0, memory_mb=256, disk_mb=32, file_mb=8, output_mb=1, processes=16, open_files=32)
SLOW = LIMITS.changed(timeout_s=30)
"""For programs that another limit ends."""


def counts(step: str, start: str = "pass") -> str:
    """A program that does something until it may not, and prints how often it did."""
    return f"import os, time\n{start}\nn, kept = 0, []\ntry:\n    while True:\n        {step}\n        n += 1\nexcept OSError: print(n)"


def refused(*attempts: str) -> str:
    """A program that prints those of its attempts, which are expressions, that are not refused."""
    return f"""
import ctypes, os, socket
libc = ctypes.CDLL(None)
def fails(attempt):
    try: return eval(attempt) == -1
    except OSError: return True
print([attempt for attempt in {attempts!r} if not fails(attempt)] or 'refused')
"""


DEAF = "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass"
CROWD = "import os, time\nfor _ in range(11):\n    if os.fork() == 0: break\nkept = bytearray(b'x') * (40 * 2**20)\ntime.sleep(5)"
TIMEOUT, OUT_OF_MEMORY = EndReason.TIMEOUT, EndReason.OUT_OF_MEMORY
PROBES: dict[str, tuple[str, EndReason | str | int, Limits]] = {
    "it sleeps for ever": ("import time; time.sleep(1000)", TIMEOUT, LIMITS),
    "it ignores every signal and loops": (DEAF, TIMEOUT, LIMITS),
    "it loops": ("while True: pass", TIMEOUT, SLOW.changed(cpu_s=1)),
    "memory, 1 MB at a time": ("kept = []\nwhile True: kept.append(bytearray(b'x') * 2**20)", OUT_OF_MEMORY, SLOW),
    "memory, 40 MB in each of 12 processes": (CROWD, OUT_OF_MEMORY, SLOW),
    "memory, 10 GB": ("try: bytearray(10**10)\nexcept MemoryError: print('refused')", "refused", SLOW),
    "it writes to its input": (refused("os.write(0, b'x')"), "refused", SLOW),
    "it writes files": (counts("open(f'/sandbox/{n}', 'wb', 0).write(b'x' * 2**20)"), 32, SLOW),
    "it writes one file": (counts("f.write(b'x' * 2**20)", "f = open('/tmp/f', 'wb', 0)"), 8, SLOW),
    "it prints for ever": ("while True: print('x' * 1000)", EndReason.OUTPUT_LIMIT, SLOW),
    "it forks": (counts("os.fork() or time.sleep(100)"), 16, SLOW),
    "it opens files": (counts("kept.append(open('/dev/null'))"), 32, SLOW),
    "it connects, and looks up a name": (
        refused("socket.create_connection(('1.1.1.1', 53), 1)", "socket.create_connection(('example.com', 80), 1)"),
        "refused",
        SLOW,
    ),
    "it asks for queues, shared memory, semaphores and sockets of other families": (
        refused(
            "libc.shmget(1, 4096, 0o1666)",
            "libc.msgget(1, 0o1666)",
            "libc.mq_open(b'/x', 0o102, 0o600, 0)",
            "libc.semget(1, 1, 0o1666)",
            "socket.socket(16, 3)",
        ),
        "refused",
        SLOW,
    ),
}
"""Programs that go against one limit each, and how they end where it holds: by a reason, a text that they print, or at most that number."""
TOGETHER = "memory, 40 MB in each of 12 processes"
"""Holds only where a control group counts."""


def holds(done: ExecResult, ends: EndReason | str | int) -> bool:
    printed = done.stdout.decode(errors="replace").strip()
    if isinstance(ends, int):
        return printed.isdigit() and int(printed) <= ends
    return ends == (done.end_reason if isinstance(ends, EndReason) else printed)


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    return working_backend(request.param)


@pytest.fixture(scope="module")
async def pool(backend: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=LIMITS), backend=backend, size=1) as pool:
        yield pool


@pytest.mark.parametrize("name", PROBES)
async def test_limits_hold(pool: SandboxPool, name: str) -> None:
    counted = pool.backend.name == "docker"
    code, ends, limits = PROBES[name]
    async with pool.take() as (sandbox,):
        done = await sandbox.run_python(code=code, limits=limits)
        assert holds(done, ends) is (counted or name != TOGETHER), done
        assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


@pytest.mark.soak
async def test_limits_hold_for_an_ordinary_user(bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    as_an_ordinary_user(monkeypatch)
    async with open_sandbox(backend=bubblewrap, limits=LIMITS) as sandbox:
        for code, ends, limits in (probe for name, probe in PROBES.items() if name != TOGETHER):
            done = await sandbox.run_python(code=code, limits=limits, only_files={})
            assert holds(done, ends), (code, done)


ENDS = {
    "print(1)": "passed",
    "print(2)": "wrong_answer",
    "raise ValueError('no')": "runtime_error",
    "print(1)\nraise SystemExit(1)": "runtime_error",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "runtime_error",
    "x = (": "runtime_error",
    "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**20)": "memory_limit",
    "while True: print('x' * 1000)": "output_limit",
}


async def test_each_verdict_on_a_program(pool: SandboxPool) -> None:
    test = IOTest(stdout="1")
    limits = LIMITS.changed(timeout_s=20)
    found = {source: (await grade(source, [test], pool=pool, limits=limits)).results[0] for source in ENDS}
    assert {source: result.status for source, result in found.items()} == ENDS
    assert "ValueError: no" in found["raise ValueError('no')"].message
    assert found["print(1)"].peak_memory_bytes > 2**20
    endless = await grade("while True: pass", [test], pool=pool, limits=LIMITS.changed(timeout_s=0.3))
    assert endless.results[0].status == "time_limit"
    language = Language(file="main.sh", build=("sh", "-n", "main.sh"), run=("sh", "main.sh"))
    assert (await grade("echo 1", [test], pool=pool, language=language, limits=limits)).passed
    assert (await grade("if", [test], pool=pool, language=language, limits=limits)).status == "build_error"
