"""Does each limit hold, here, on each backend? Programs that go against one limit each, and what became of them.

`agentrl doctor --limits` prints the table; the test suite asserts every line of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.machine.sandbox_bounds import FILES
from agentrl.sandboxes.choose import BackendName, choose_backend, start_sandbox
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import Backend, EndReason, ExecResult, Limits, SandboxSpec

LIMITS = Limits(
    timeout_s=1.0, memory_mb=256, disk_mb=32, file_mb=8, output_mb=1, processes=16, open_files=32, cpu_s=None
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A program that goes against a limit."""

    limit: str
    does: str
    code: str
    holds: Callable[[ExecResult], bool]
    limits: Limits = LIMITS
    needs_control_group: bool = False
    """Whether it holds only where a control group counts."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What became of an attempt."""

    attempt: Attempt
    done: ExecResult
    holds: bool

    @property
    def text(self) -> str:
        """In a few words."""
        done = self.done
        said = done.stdout[-60:].decode(errors="replace").strip() if len(done.stdout) < 1000 else ""
        shown = said or {"exit": f"exit code {done.exit_code}", "signal": f"signal {done.signal}"}.get(
            done.end_reason, ""
        )
        parts = [done.end_reason.replace("_", " ")] if done.end_reason not in ("exit", "signal") else []
        parts += [shown] if shown and not parts else []
        if done.end_reason == EndReason.TIMEOUT:
            parts.append(f"after {done.duration_s:.2f} s, {done.cpu_s:.2f} s of CPU")
        if done.end_reason == EndReason.OUT_OF_MEMORY:
            parts.append(f"at {done.peak_memory_bytes / 2**20:.0f} MB")
        if done.end_reason == EndReason.OUTPUT_LIMIT:
            parts.append(f"at {len(done.stdout + done.stderr) / 2**20:.1f} MB")
        fails = "DOES NOT HOLD without a control group: " if self.attempt.needs_control_group else "DOES NOT HOLD: "
        return ("" if self.holds else fails) + ", ".join(parts)


def _said(text: str) -> Callable[[ExecResult], bool]:
    return lambda done: done.stdout.decode(errors="replace").strip() == text


def _ended(how: EndReason) -> Callable[[ExecResult], bool]:
    return lambda done: done.end_reason is how


def _counts(most: int) -> Callable[[ExecResult], bool]:
    return lambda done: done.stdout.strip().isdigit() and int(done.stdout) <= most


ATTEMPTS = (
    Attempt(
        limit="timeout_s = 1",
        does="sleeps for ever",
        code="import time\ntime.sleep(1000)",
        holds=lambda done: done.end_reason is EndReason.TIMEOUT and done.duration_s < 2,
    ),
    Attempt(
        limit="timeout_s = 1",
        does="ignores every signal and loops",
        code="import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        holds=_ended(EndReason.TIMEOUT),
    ),
    Attempt(
        limit="cpu_s = 0.5",
        does="loops in four processes",
        code="import os\nos.fork(); os.fork()\nwhile True: pass",
        limits=LIMITS.but(timeout_s=10, cpu_s=0.5),
        holds=lambda done: done.end_reason is EndReason.TIMEOUT and done.cpu_s < 1.5,
    ),
    Attempt(
        limit="cpus = 1",
        does="loops in four processes for 1 s",
        code="import os\nos.fork(); os.fork()\nwhile True: pass",
        holds=lambda done: done.cpu_s < 1.4 * done.duration_s,
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards, 1 MB at a time",
        code="hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**20)",
        holds=_ended(EndReason.OUT_OF_MEMORY),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards 40 MB in each of 10 processes",
        code="import os, time\nfor _ in range(9):\n    if os.fork() == 0: break\nhoard = bytearray(b'x') * (40 * 2**20)\ntime.sleep(100)",
        holds=_ended(EndReason.OUT_OF_MEMORY),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards in a thread when its first thread has ended",
        code="import ctypes, os, threading, time\ndef hoard():\n    time.sleep(0.02)\n    kept = []\n    for _ in range(45):\n        kept.append(bytearray(b'x') * 10_000_000)\n        time.sleep(0.01)\n    os._exit(0)\nthreading.Thread(target=hoard).start()\nctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)",
        limits=LIMITS.but(timeout_s=5),
        holds=_ended(EndReason.OUT_OF_MEMORY),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards in the file that is its input",
        code="import os\ntry: print(os.write(0, b'x' * 2**20))\nexcept PermissionError: print('refused')",
        holds=_said("refused"),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="asks for 10 GB at once",
        code="try: bytearray(10 * 2**30)\nexcept MemoryError: print('refused')",
        holds=_said("refused"),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards shared memory, and gives its pages back",
        code="import mmap\nhoard = []\ntry:\n    while len(hoard) < 1500:\n        hoard.append(mmap.mmap(-1, 2**20))\n        hoard[-1].write(b'x' * 2**20)\n        hoard[-1].madvise(mmap.MADV_DONTNEED)\nexcept OSError: pass\nprint(len(hoard))",
        limits=LIMITS.but(timeout_s=10),
        holds=lambda done: done.end_reason is EndReason.OUT_OF_MEMORY or _counts(0)(done),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards in files of memory that nobody maps",
        code="import os\nn = 0\ntry:\n    while n < 1500:\n        os.write(os.memfd_create(str(n)), b'x' * 2**23)\n        n += 8\nexcept OSError: pass\nprint(n)",
        limits=LIMITS.but(timeout_s=10, open_files=512),
        holds=lambda done: done.end_reason is EndReason.OUT_OF_MEMORY or _counts(0)(done),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="hoards page tables",
        code="import ctypes\nl = ctypes.CDLL(None)\nl.mmap.restype = ctypes.c_void_p\nl.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\nwhile True:\n    start = l.mmap(None, 2**30, 1, 0x4022, -1, 0)\n    for page in range(start, start + 2**30, 2**21): ctypes.c_char.from_address(page).value",
        limits=LIMITS.but(timeout_s=30),
        holds=_ended(EndReason.OUT_OF_MEMORY),
    ),
    Attempt(
        limit="memory_mb = 256",
        does="fills the buffers of sockets",
        code="import os, socket, time\nos.fork(); os.fork(); os.fork()\nhoard = []\ntry:\n    while True:\n        hoard.append(socket.socketpair())\n        for end in hoard[-1]:\n            end.setblocking(False)\n            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**24)\n            try:\n                while True: end.send(b'x' * 65536)\n            except BlockingIOError: pass\nexcept OSError: time.sleep(100)",
        limits=LIMITS.but(timeout_s=4, open_files=512),
        holds=_ended(EndReason.OUT_OF_MEMORY),
        needs_control_group=True,
    ),
    Attempt(
        limit="cpu_s = 0.5",
        does="loops in children that nobody waits for",
        code="import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n        while time.process_time() < 0.1: pass\n        os._exit(0)\n    try: os.wait()\n    except OSError: pass",
        limits=LIMITS.but(timeout_s=10, cpu_s=0.5),
        holds=lambda done: done.end_reason is EndReason.TIMEOUT and 0.5 < done.cpu_s < 1.5,
    ),
    Attempt(
        limit="cpu_s = 0.5",
        does="loops in short-lived children that nobody waits for",
        code="import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n        while time.process_time() < 0.004: pass\n        os._exit(0)\n    try: os.wait()\n    except OSError: pass",
        limits=LIMITS.but(timeout_s=8, cpu_s=0.5),
        holds=lambda done: done.end_reason is EndReason.TIMEOUT and 0.5 < done.cpu_s < 1.5,
        needs_control_group=True,
    ),
    Attempt(
        limit="files",
        does="makes empty files until it may not",
        code="n = 0\ntry:\n    while n < 400_000:\n        open(f'/tmp/{n}', 'w').close()\n        n += 1\nexcept OSError: print(n)",
        limits=LIMITS.but(timeout_s=20),
        holds=_counts(FILES),
    ),
    Attempt(
        limit="what nothing counts",
        does="asks for aio, io_uring, a memfd of huge pages, secret memory, an LDT, keys",
        code="import ctypes\nl, p = ctypes.CDLL(None), ctypes.create_string_buffer(256)\nx86 = ctypes.sizeof(ctypes.c_long) == 8 and __import__('os').uname().machine == 'x86_64'\ncalls = [(206 if x86 else 0, 65536, p), (425, 8, p), (319 if x86 else 279, b'x', 4), (447, 0), (248 if x86 else 217, b'user', b'x', b'x', 1, -4)] + [(154, 1, p, 16)] * x86\nprint('refused' if {l.syscall(*c) for c in calls} == {-1} else 'given')",
        holds=_said("refused"),
    ),
    Attempt(
        limit="network = false",
        does="opens a socket of every family",
        code="import socket\nn = set()\nfor f in range(64):\n    for kind in (1, 2, 3, 5):\n        try: socket.socket(f, kind).close(); n.add(f)\n        except OSError: pass\nprint(sorted(n))",
        holds=_said("[1, 2, 10]"),
    ),
    Attempt(
        limit="processes = 16",
        does="forks until it may not",
        code="import os, time\nn = 1\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(100)\n        n += 1\nexcept OSError: print(n)",
        holds=_counts(LIMITS.processes),
    ),
    Attempt(
        limit="disk_mb = 32",
        does="writes files until it may not",
        code="n = 0\ntry:\n    while True:\n        open(f'/sandbox/{n}', 'wb').write(b'x' * 2**20)\n        n += 1\nexcept OSError: print(n)",
        holds=_counts(LIMITS.disk_mb),
    ),
    Attempt(
        limit="file_mb = 8",
        does="writes one file until it may not",
        code="import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nf, n = open('/sandbox/f', 'wb', 0), 0\ntry:\n    while True:\n        f.write(b'x' * 2**20)\n        n += 1\nexcept OSError: print(n)",
        holds=_counts(LIMITS.file_mb),
    ),
    Attempt(
        limit="open_files = 32",
        does="opens files until it may not",
        code="hoard = []\ntry:\n    while True: hoard.append(open('/dev/null'))\nexcept OSError: print(len(hoard))",
        holds=_counts(LIMITS.open_files),
    ),
    Attempt(
        limit="output_mb = 1",
        does="writes 1 GB to its output",
        code="import os\nfor _ in range(2**14): os.write(1, b'x' * 2**16)",
        holds=_ended(EndReason.OUTPUT_LIMIT),
    ),
    Attempt(
        limit="network = false",
        does="connects, and looks up a name",
        code="import socket\nn = 0\nfor a in (('1.1.1.1', 53), ('127.0.0.1', 22), ('example.com', 80)):\n    try: socket.create_connection(a, 0.5)\n    except OSError: n += 1\nprint('refused' if n == 3 else 'connected')",
        holds=_said("refused"),
    ),
    Attempt(
        limit="read-only root",
        does="writes to /, /usr, /etc, /var and /dev",
        code="n = 0\nfor p in ('/x', '/usr/x', '/etc/x', '/var/x', '/dev/x', '/bin/x'):\n    try: open(p, 'w')\n    except OSError: n += 1\nprint('refused' if n == 6 else 'written')",
        holds=_said("refused"),
    ),
    Attempt(
        limit="no privileges",
        does="becomes root, mounts, unshares, traces process 1",
        code="import ctypes, os\nl = ctypes.CDLL(None)\nn = [l.setuid(0), l.mount(b'x', b'/sandbox', b'tmpfs', 0, 0), l.unshare(0x10000000), l.unshare(0x20000), l.ptrace(16, 1, 0, 0), l.chroot(b'/sandbox')]\ncaps = [x.split()[1] for x in open('/proc/self/status') if x.startswith('CapEff')][0]\nprint('refused' if set(n) == {-1} and int(caps, 16) == 0 and os.getuid() else (n, caps))",
        holds=_said("refused"),
    ),
    Attempt(
        limit="nothing outlives a run",
        does="leaves a daemon",
        code="import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
        holds=lambda done: done.ok,
    ),
    Attempt(
        limit="nothing outlives a run",
        does="looks for that daemon",
        code="import os\nprint([p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())])",
        holds=_said("[]"),
    ),
)


async def check_limits(backend: BackendName | Backend, attempts: Sequence[Attempt] = ATTEMPTS) -> list[Observed]:
    """Run the attempts in one sandbox.

    Raises:
        SandboxError: The backend does not work here.
    """
    spec = SandboxSpec(limits=LIMITS)
    async with start_sandbox(await choose_backend(backend, spec), spec, core=0) as sandbox:
        return [await _observe(sandbox, attempt) for attempt in attempts]


async def _observe(sandbox: Sandbox, attempt: Attempt) -> Observed:
    await sandbox.clear()
    done = await sandbox.run_python(code=attempt.code, limits=attempt.limits)
    return Observed(attempt=attempt, done=done, holds=attempt.holds(done))


def limits_table(columns: dict[str, list[Observed]]) -> str:
    """Return a Markdown table: a line an attempt, a column a backend."""
    names = list(columns)
    lines = [f"| limit | a program that | {' | '.join(names)} |", f"| --- | --- |{' --- |' * len(names)}"]
    for row in zip(*columns.values(), strict=True):
        attempt = row[0].attempt
        lines.append(f"| {attempt.limit} | {attempt.does} | {' | '.join(seen.text for seen in row)} |")
    return "\n".join(lines)
