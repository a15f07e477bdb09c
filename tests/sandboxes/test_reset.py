"""A reset leaves nothing behind: each user finds the same place, whatever the one before did to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.sandboxes import BackendName, Limits, Sandbox, open_sandbox
from tests.real_sandboxes import as_an_ordinary_user

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FOLDERS = ("/sandbox", "/tmp", "/dev/shm", "/dev/mqueue")

LOOK = f"""
import ctypes, glob, json, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def look(path):
    s = os.stat(path)
    room = os.statvfs(path)
    return [s.st_mode, s.st_uid == os.getuid(), s.st_nlink, s.st_size, os.listxattr(path), os.listdir(path), room.f_ffree, room.f_bfree, room.f_flag]
def read(path):
    with open(path) as file: return file.read()
seen = {{folder: look(folder) for folder in {FOLDERS!r} if os.path.isdir(folder)}}
seen["devices"] = read("/proc/net/dev")
for path in ("/proc/net/tcp", "/proc/net/unix", "/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"):
    seen[path] = read(path).splitlines()[1:]
seen["processes"] = sorted(p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid()))
seen["limits"] = [resource.getrlimit(n) for n in range(16)]
seen["status"] = [l for l in read("/proc/self/status").splitlines() if l.startswith(("Cap", "NoNew", "Seccomp", "Groups", "Sig", "Shd"))]
seen["state"] = [os.getcwd(), os.umask(0), dict(os.environ), sorted(os.listdir("/proc/self/fd")), sorted(os.sched_getaffinity(0)), os.uname().nodename, os.getpriority(os.PRIO_PROCESS, 0)]
print(json.dumps(seen))
"""
"""Everything of its place that a program can look at and that should be the same for each."""

HARM = {
    "modes of the folders": "for f in FOLDERS: chmod(f, 0o555); chmod(f, 0)",
    "times of the folders": "for f in FOLDERS: utime(f, (1, 1))",
    "extended attributes": "for f in FOLDERS: setxattr(f, 'user.mark', b'x'); setxattr(f, 'trusted.mark', b'x')",
    "files that nobody may remove": """
for f in FOLDERS:
    try:
        os.makedirs(f + '/a/b/c'); open(f + '/a/b/c/d', 'w').write('x')
        os.chmod(f + '/a/b', 0)
    except OSError: pass
""",
    "folders too deep to be walked": "for _ in range(3000):\n    os.mkdir('d' * 100); os.chdir('d' * 100)",
    "every inode": """
try:
    for n in range(10**6): open(f'/tmp/{n}', 'w').close()
except OSError: pass
""",
    "connections that have ended": """
import socket
server = socket.create_server(('127.0.0.1', 4747))
for _ in range(200):
    client = socket.create_connection(('127.0.0.1', 4747)); there = server.accept()[0]
    there.close(); client.close()
""",
    "processes that stay": "\nif os.fork() == 0:\n    os.setsid(); __import__('time').sleep(1000)",
    "stopped and traced processes": """
import signal
pid = os.fork()
if pid == 0: signal.pause()
os.kill(pid, signal.SIGSTOP)
""",
    "locks on shared files": """
import fcntl, sys
file = open(sys.executable if os.access(sys.executable, 4) else '/usr/bin/env')
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
if os.fork() == 0: __import__('time').sleep(1000)
""",
    "kernel objects": """
for key in range(1, 20): libc.shmget(key, 4096, 0o1666); libc.semget(key, 1, 0o1666); libc.msgget(key, 0o1666)
attempt(open, '/dev/mqueue/mark', 'w')
libc.add_key(b'user', b'mark', b'x', 1, -4)
""",
    "the name of the machine": "libc.sethostname(b'mark', 4); libc.setdomainname(b'mark', 4)",
    "mounts": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0); libc.umount2(b'/sandbox', 2); libc.unshare(0x10000000)",
}
"""What a user did to its place, and to the next one's."""

PREAMBLE = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
FOLDERS = [f for f in {FOLDERS!r} if os.path.isdir(f)]
def attempt(function, *arguments):
    try: function(*arguments)
    except OSError: pass
chmod = lambda *a: attempt(os.chmod, *a)
utime = lambda *a: attempt(os.utime, *a)
setxattr = lambda *a: attempt(os.setxattr, *a)
"""

HONEST = """
import os, socket, subprocess, tempfile
open('/sandbox/x', 'w').write('x')
with tempfile.TemporaryDirectory() as folder: open(folder + '/y', 'w').write('y')
with open('/dev/shm/z', 'w') as file: file.write('z')
server = socket.create_server(('127.0.0.1', 4747))
socket.create_connection(('127.0.0.1', 4747)).sendall(b'hello')
print(server.accept()[0].recv(5).decode(), subprocess.run(['echo', 'fine'], capture_output=True, text=True).stdout.strip())
"""


@pytest.fixture(params=["bubblewrap", pytest.param("bubblewrap as an ordinary user", marks=pytest.mark.soak), "docker"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BackendName:
    name, _, ordinary = request.param.partition(" ")
    if ordinary:
        as_an_ordinary_user(monkeypatch)
    return request.getfixturevalue(name)  # type: ignore[no-any-return]


@pytest.fixture
async def sandbox(place: BackendName) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend=place, limits=Limits(timeout_s=10, disk_mb=8)) as sandbox:
        yield sandbox


async def look(sandbox: Sandbox) -> dict[str, Any]:
    done = await sandbox.run_python(code=LOOK)
    assert done.ok, done
    return json.loads(done.stdout)  # type: ignore[no-any-return]


async def test_the_next_user_finds_the_place_as_the_first_did(sandbox: Sandbox) -> None:
    new = await look(sandbox)
    for name, harm in HARM.items():
        await sandbox.reset()
        await sandbox.run_python(code=PREAMBLE + harm)
        await sandbox.reset()
        assert await look(sandbox) == new, name
        done = await sandbox.run_python(code=HONEST)
        assert done.stdout == b"hello fine\n", (name, done)


async def test_harm_is_seen_where_there_is_no_reset(sandbox: Sandbox) -> None:
    """The test above can fail: what it looks at does change."""
    new = await look(sandbox)
    await sandbox.run_python(code=PREAMBLE + HARM["files that nobody may remove"])
    changed = await look(sandbox)
    assert {name for name in new if new[name] != changed[name]} >= {"/sandbox", "/tmp", "/dev/shm"}


async def test_each_user_is_another_to_the_kernel(sandbox: Sandbox) -> None:
    """What is counted by user is counted anew, where user ids can be had."""
    seen = set()
    for _ in range(5):
        seen.add(int((await sandbox.run_python(code="import os; print(os.getuid())")).stdout))
        await sandbox.reset()
    assert 0 not in seen
    assert len(seen) == 5 or seen == {1000}


@pytest.mark.soak
async def test_a_message_that_comes_while_a_sandbox_is_reset_is_not_torn(sandbox: Sandbox) -> None:
    """It is for the old user, and read whole by the next first process, which knows of no such program."""
    for _ in range(10):
        process = await sandbox.start(["sleep", "1000"])
        await sandbox._send(b"Z", 0)
        await process.send(b"x" * 100_000)
        await process.kill()
        sandbox._ready = False
        await sandbox._until(lambda: sandbox._ready, "reset")
        sandbox._processes.clear()
        assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


IN_FLIGHT = """
import os, socket
for n in range(8):
    kept = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR) if n % 2 else os.memfd_create("kept") if hasattr(os, "memfd_create") else 0
    for _ in range(2): os.write(kept, b"x" * 10_000_000)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    socket.send_fds(ends[0], [b"x"], [kept, *(end.fileno() for end in ends)])
    os.close(kept)
"""
"""Files that are on their way through sockets of which nobody holds an end: the kernel looks for them now and then."""


@pytest.mark.soak
async def test_no_memory_of_an_earlier_user_s_is_the_next_one_s(sandbox: Sandbox) -> None:
    hungry = "x = bytearray(b'x') * 150_000_000; print(len(x))"
    for _ in range(4):
        await sandbox.run_python(code=IN_FLIGHT)
        await sandbox.reset()
    assert (await sandbox.run_python(code=hungry)).stdout == b"150000000\n"
