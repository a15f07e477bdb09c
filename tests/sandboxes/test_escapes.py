"""Programs that want more than their share, or things that are not theirs: all are stopped, and the next user is unharmed.

Each prints "escaped" where it gets what it wants. tests/sandboxes/test_reset.py has those that leave something behind,
test_backends.py those that go against a limit.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxPool, SandboxSpec, open_pool
from tests.real_sandboxes import working_backend
from tests.sandboxes.test_reset import HONEST

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LIMITS = Limits(timeout_s=0.5, memory_mb=200, disk_mb=8, file_mb=8, output_mb=1, processes=32)
PATIENT = LIMITS.changed(timeout_s=60)

PREAMBLE = """
import ctypes, fcntl, glob, mmap, os, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def wants(attempt, *arguments):
    try: got = attempt(*arguments)
    except Exception: return
    if got != -1: print("escaped", attempt, arguments, got, flush=True)
def tries(attempt, *arguments):
    try: return attempt(*arguments)
    except Exception: pass
"""

PROGRAMS = {
    # what belongs to the host
    "the network": "for address in (('127.0.0.1', PORT), ('1.1.1.1', 53), ('172.17.0.1', PORT)): wants(socket.create_connection, address, 0.2)",
    "the engine's socket": "for path in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock'): wants(socket.socket(socket.AF_UNIX).connect, path)",
    "the host's secrets": "for path in ('/etc/shadow', '/root/.ssh/id_rsa', 'CANARY', '/proc/1/root/etc/shadow', '/proc/1/environ'): wants(open, path)\nif 'AGENTRL_SECRET' in os.environ: print('escaped')",
    "the host's files": "for path in ('/x', '/usr/x', '/etc/x', '/var/x', '/venv/x', '/dev/x', sys.executable or '/usr/bin/python3'): wants(open, path, 'w')",
    "settings of the kernel": "for path in ('/proc/sysrq-trigger', '/dev/kmsg', '/proc/sys/kernel/core_pattern', *glob.glob('/proc/sys/vm/*'), *glob.glob('/sys/fs/cgroup/*/*')[:100]): wants(open, path, 'w')",
    "the clock": "wants(time.clock_settime, time.CLOCK_REALTIME, 0)",
    "a file of the machine's locked for others": "for path in glob.glob('/usr/bin/*')[:20]: wants(lambda: fcntl.fcntl(open(path), 1024, fcntl.F_RDLCK))",
    # rights
    "more rights": "for call in ((os.setuid, 0), (os.setgid, 0), (os.setgroups, [0]), (os.mknod, '/sandbox/m', 0o60666), (os.chroot, '/tmp')): wants(*call)",
    "new namespaces": "for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000): wants(libc.unshare, flag)\nwants(libc.syscall, 56, 0x10000000 | 17, 0, 0, 0, 0)",
    "calls that only escapes need": "for number in (101, 155, 165, 246, 272, 298, 304, 308, 310, 321, 323, 425, 428, 430, 438, 442): wants(libc.syscall, number, 0, 0, 0, 0, 0) if os.uname().machine == 'x86_64' else None",
    "a set-uid program": "open('/tmp/p', 'w').write('#!/bin/sh\\nid -u'); os.chmod('/tmp/p', 0o6755)\nif os.popen('/tmp/p').read().strip() == '0': print('escaped')",
    # the first process
    "the first process's memory and files": "for name in ('mem', 'maps', 'environ', 'auxv'): wants(lambda: open(f'/proc/1/{name}', 'rb').read(1))\nwants(os.listdir, '/proc/1/fd'); wants(os.readlink, '/proc/1/exe'); wants(os.listdir, '/proc/1/map_files')",
    "the first process traced": "wants(libc.ptrace, 16, 1, 0, 0); wants(libc.ptrace, 0x4206, 1, 0, 0); wants(libc.process_vm_readv, 1, 0, 0, 0, 0, 0)",
    "limits of the first process": "for n in range(16): wants(resource.prlimit, 1, n, (0, 0))\nwants(os.sched_setaffinity, 1, {0}); wants(os.setpriority, 0, 1, 19); wants(libc.syscall, 251, 1, 1, 0)",
    "signals for everybody": "for n in range(1, 65): tries(os.kill, 1, n)\ntries(signal.pidfd_send_signal, tries(os.pidfd_open, 1), 9); tries(os.kill, -1, 9)",
    "signals of descriptors for the first process": "r, w = os.pipe()\nfor fd in (r, w): tries(fcntl.fcntl, fd, fcntl.F_SETOWN, 1); tries(fcntl.fcntl, fd, 10, 9); tries(fcntl.fcntl, fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nfor _ in range(1000): os.write(w, b'x')",
    "frames on every descriptor": "for fd in range(3, 200): tries(os.write, fd, b'x' * 1000); tries(os.close, fd)",
    "a child of the first process": "if os.uname().machine == 'x86_64' and libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0: time.sleep(100)",
    "first to be spared when memory is short": "wants(lambda: os.write(os.open('/proc/self/oom_score_adj', 1), b'-1000'))\nkept = []\nwhile True: kept.append(bytearray(b'x') * 10**7)",
    # more than its share
    "a fork bomb": "while True: tries(os.fork)",
    "a thread bomb": "while True: tries(threading.Thread(target=time.sleep, args=(1000,)).start)",
    "children that nobody waits for": "while True:\n    if tries(os.fork) == 0: os._exit(0)",
    "memory in many processes": "for _ in range(8):\n    if os.fork() == 0: kept = bytearray(b'x') * 60_000_000; time.sleep(100)\ntime.sleep(100)",
    "memory that is no process's": "kept = []\nwhile True:\n    fd = tries(os.memfd_create, 'x')\n    if fd is None: break\n    os.write(fd, b'x' * 10**6)",
    "memory locked and shared": "libc.mlockall(7)\nkept = []\nwhile tries(lambda: kept.append(mmap.mmap(-1, 10**7)) or kept[-1].write(b'x' * 10**7)): pass",
    "limits raised again": "for n in range(16): tries(resource.setrlimit, n, (-1, -1))\nkept = []\nwhile True: kept.append(bytearray(b'x') * 10**7)",
    "files without a name": "kept = []\nwhile True:\n    fd = tries(os.open, '/tmp', os.O_TMPFILE | os.O_RDWR)\n    if fd is None: break\n    tries(os.posix_fallocate, fd, 0, 2**20)",
    "a gigabyte of output": "while True: os.write(1, b'x' * 2**16); os.write(2, b'x' * 2**16)",
    "descriptors within descriptors": "here, there = socket.socketpair()\nwhile tries(socket.send_fds, here, [b'x'], [here.fileno(), there.fileno()]): pass",
    "watches of every file": "fd = libc.inotify_init()\nfor name in (b'/', b'/usr', b'/usr/bin', b'/tmp'): libc.inotify_add_watch(fd, name, 0xfff)",
    "a filter of its own": "code = b'\\6\\0\\0\\0\\0\\0\\xff\\x7f'\nclass F(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('p', ctypes.c_char_p)]\nlibc.prctl(38, 1, 0, 0, 0); libc.prctl(22, 2, ctypes.byref(F(1, code)), 0, 0)\nwants(libc.unshare, 0x10000000)",
}


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    backend: BackendName = working_backend(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_SECRET", "the host's own")
        async with open_pool(SandboxSpec(limits=LIMITS), backend=backend, size=1) as pool:
            yield pool


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_is_stopped_and_the_next_user_is_unharmed(
    pool: SandboxPool, listener: socket.socket, tmp_path: Path, name: str
) -> None:
    (tmp_path / "canary").write_text("the host's own")
    lost = pool.metrics.lost
    source = PROGRAMS[name].replace("PORT", str(listener.getsockname()[1])).replace("CANARY", str(tmp_path / "canary"))
    async with pool.take() as (sandbox,):
        done = await sandbox.run_python(code=PREAMBLE + source, only_files={})
        assert b"escaped" not in done.stdout, done
        assert b"Error" not in done.stderr or b"MemoryError" in done.stderr or done.end_reason == "output_limit", done
    async with pool.take() as (sandbox,):
        done = await sandbox.run_python(code=HONEST, limits=PATIENT)
        assert done.stdout == b"hello fine\n", done
    assert pool.metrics.lost == lost, "the sandbox had to be replaced"
    with pytest.raises(BlockingIOError):  # nothing has come from a sandbox
        listener.accept()
