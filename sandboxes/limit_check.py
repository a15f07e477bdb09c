"""Does each limit hold, here, on each backend? Programs that go against one limit each, and how they ended.

`agentrl doctor --limits` prints the table; the test suite asserts every line of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.sandboxes.choose import choose_backend, start_sandbox
from agentrl.sandboxes.seams import Backend, EndReason, ExecResult, Limits, SandboxSpec

LIMITS = Limits(timeout_s=1.0, memory_mb=256, disk_mb=32, file_mb=8, output_mb=1, processes=16, open_files=32)
SLOW = LIMITS.but(timeout_s=30)
"""For programs that another limit ends."""


@dataclass(frozen=True)
class Probe:
    """A program that goes against a limit, and how it ends where the limit holds."""

    limit: str
    does: str
    code: str
    ends: EndReason | str | int
    """The reason of its end, the text that it prints, or the largest number that it may print."""
    limits: Limits = SLOW
    needs_control_group: bool = False
    """Whether it holds only where a control group counts."""

    def holds(self, done: ExecResult) -> bool:
        """Return whether the limit held."""
        said = done.stdout.decode(errors="replace").strip()
        if isinstance(self.ends, int):
            return said.isdigit() and int(said) <= self.ends
        return self.ends == (done.end_reason if isinstance(self.ends, EndReason) else said)


def counts(step: str, start: str = "pass") -> str:
    """Return a program that does something until it may not, and prints how often it did."""
    return f"import os, resource, signal, time\n{start}\nn, kept = 0, []\ntry:\n    while True:\n        {step}\n        n += 1\nexcept OSError: print(n)"


def refused(*attempts: str) -> str:
    """Return a program that prints whether each of its attempts, which are expressions, is refused."""
    return f"""
import ctypes, os, socket
libc = ctypes.CDLL(None)
def fails(attempt):
    try: return eval(attempt) == -1
    except OSError: return True
given = [attempt for attempt in {attempts!r} if not fails(attempt)]
print(given or 'refused')
"""


HOARD = "kept = []\nwhile True: kept.append(bytearray(b'x') * 2**20)"
DEAF = "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass"
CROWD = "import os, time\nfor _ in range(11):\n    if os.fork() == 0: break\nkept = bytearray(b'x') * (40 * 2**20)\ntime.sleep(5)"
PROBES = (
    Probe("timeout_s = 1", "sleeps for ever", "import time; time.sleep(1000)", EndReason.TIMEOUT, LIMITS),
    Probe("timeout_s = 1", "ignores every signal and loops", DEAF, EndReason.TIMEOUT, LIMITS),
    Probe("cpu_s = 1", "loops", "while True: pass", EndReason.TIMEOUT, SLOW.but(cpu_s=1)),
    Probe("memory_mb = 256", "hoards, 1 MB at a time", HOARD, EndReason.OUT_OF_MEMORY),
    Probe("memory_mb = 256", "hoards 40 MB in each of 12 processes", CROWD, EndReason.OUT_OF_MEMORY, SLOW, True),
    Probe(
        "memory_mb = 256", "asks for 10 GB", "try: bytearray(10**10)\nexcept MemoryError: print('refused')", "refused"
    ),
    Probe("memory_mb = 256", "writes to its input", refused("os.write(0, b'x')"), "refused"),
    Probe("disk_mb = 32", "writes files", counts("open(f'/sandbox/{n}', 'wb', 0).write(b'x' * 2**20)"), 32),
    Probe(
        "file_mb = 8",
        "writes one file",
        counts("kept[0].write(b'x' * 2**20)", "pass").replace("[]", "[open('/tmp/f', 'wb', 0)]"),
        8,
    ),
    Probe("output_mb = 1", "prints for ever", "while True: print('x' * 1000)", EndReason.OUTPUT_LIMIT),
    Probe("processes = 16", "forks", counts("os.fork() or time.sleep(100)"), 16),
    Probe("open_files = 32", "opens files", counts("kept.append(open('/dev/null'))"), 32),
    Probe(
        "network = false",
        "connects, and looks up a name",
        refused("socket.create_connection(('1.1.1.1', 53), 1)", "socket.create_connection(('example.com', 80), 1)"),
        "refused",
    ),
    Probe(
        "read-only root",
        "writes to it",
        refused(*(f"open('/{folder}x', 'w')" for folder in ("", "usr/", "etc/", "dev/", "venv/", "proc/sys/"))),
        "refused",
    ),
    Probe(
        "no privileges",
        "becomes root, mounts, makes namespaces, traces process 1",
        refused(
            "libc.setuid(0)",
            "libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)",
            "libc.unshare(0x10000000)",
            "libc.ptrace(16, 1, 0, 0)",
            "os.kill(1, 9) or os.open('/proc/1/mem', 0)",
            "os.listdir('/proc/1/fd')",
        ),
        "refused",
    ),
    Probe(
        "what nothing counts",
        "asks for System V and POSIX queues, shared memory, semaphores, huge pages, sockets of other families",
        refused(
            "libc.shmget(1, 4096, 0o1666)",
            "libc.msgget(1, 0o1666)",
            "libc.mq_open(b'/x', 0o102, 0o600, 0)",
            "libc.semget(1, 1, 0o1666)",
            "libc.memfd_create(b'x', 4)",
            "socket.socket(16, 3)",
        ),
        "refused",
    ),
)


async def check_limits(backend: str | Backend, probes: Sequence[Probe] = PROBES) -> list[ExecResult]:
    """Run the programs in a sandbox, one after another.

    Raises:
        SandboxError: The backend cannot be used.
    """
    spec = SandboxSpec(limits=LIMITS)
    async with start_sandbox(await choose_backend(backend, spec), spec) as sandbox:
        return [await sandbox.run_python(code=probe.code, limits=probe.limits, only_files={}) for probe in probes]


def limits_table(columns: Mapping[str, Sequence[ExecResult]]) -> str:
    """Return a Markdown table of all programs: a column for each backend."""
    lines = [f"| limit | a program that | {' | '.join(columns)} |", f"| --- | --- |{' --- |' * len(columns)}"]
    for probe, *row in zip(PROBES, *columns.values(), strict=True):
        lines.append(f"| {probe.limit} | {probe.does} | {' | '.join(_shown(probe, done) for done in row)} |")
    return "\n".join(lines)


def _shown(probe: Probe, done: ExecResult) -> str:
    said = done.stdout[:60].decode(errors="replace").strip() if len(done.stdout) < 100 else ""
    text = said or f"{done.end_reason.replace('_', ' ')} after {done.duration_s:.1f} s"
    why = " without a control group" * probe.needs_control_group
    return text if probe.holds(done) else f"DOES NOT HOLD{why}: {text}"
