"""A reset leaves nothing behind: each user finds the same place, whatever the one before did to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from agentrl.sandboxes import BackendName, Limits, Sandbox, open_sandbox
from tests.real_sandboxes import as_an_ordinary_user

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FOLDERS = ("/sandbox", "/tmp", "/dev/shm")

LOOK = f"""
import json, os, resource
def look(path):
    s, room = os.stat(path), os.statvfs(path)
    return [s.st_mode, s.st_uid, s.st_nlink, os.listdir(path), room.f_ffree, room.f_bfree]
def read(path):
    with open(path) as file: return file.read()
seen = {{folder: look(folder) for folder in {FOLDERS!r}}}
for path in ("/proc/net/dev", "/proc/net/unix", "/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"):
    seen[path] = [line.split(":")[0] for line in read(path).splitlines()[1:]]
seen["queues"] = os.path.isdir("/dev/mqueue") and os.listdir("/dev/mqueue")
seen["processes"] = sorted(p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid()))
seen["limits"] = [resource.getrlimit(n) for n in range(16)]
seen["status"] = [l for l in read("/proc/self/status").splitlines() if l.startswith(("Cap", "NoNew", "Seccomp", "Groups", "Uid", "SigI", "SigC"))]
seen["state"] = [os.getcwd(), os.umask(0), dict(os.environ), sorted(os.listdir("/proc/self/fd")), os.uname().nodename, os.getpriority(0, 0)]
print(json.dumps(seen))
"""
"""Everything of its place that a program can look at and that should be the same for each."""

PREAMBLE = f"""
import ctypes, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
FOLDERS = {FOLDERS!r}
def attempt(function, *arguments):
    try: return function(*arguments)
    except OSError: pass
"""

HARM = {
    "files and links": "for f in FOLDERS:\n    open(f + '/left', 'w').write('x'); os.symlink('/etc', f + '/link'); os.link(f + '/left', f + '/again'); os.mkfifo(f + '/fifo')",
    "a full disk": "for f in FOLDERS:\n    try:\n        for n in range(99): open(f'{f}/{n}', 'wb', 0).write(b'x' * 2**20)\n    except OSError: pass",
    "many files": "for n in range(3000): open(f'/tmp/{n}', 'w').close()",
    "folders without any right": "for f in FOLDERS:\n    os.makedirs(f + '/a/b/c'); open(f + '/a/b/c/d', 'w').close(); os.chmod(f + '/a/b/c', 0); os.chmod(f + '/a/b', 0); os.chmod(f + '/a', 0); attempt(os.chmod, f, 0)",
    "folders too deep to be walked": "for _ in range(3000):\n    os.mkdir('d' * 100); os.chdir('d' * 100)",
    "files that are open and have no name": "kept = os.open('/tmp', os.O_TMPFILE | os.O_RDWR); os.write(kept, b'x' * 2**20)\nif os.fork() == 0: os.setsid(); time.sleep(1000)",
    "a daemon": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
    "stopped and deaf processes": "if os.fork() == 0:\n    for n in range(1, 32): attempt(signal.signal, n, signal.SIG_IGN)\n    os.kill(os.getpid(), signal.SIGSTOP)\n    time.sleep(1000)",
    "a fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "kernel objects": "for key in range(1, 9): libc.shmget(key, 4096, 0o1666); libc.semget(key, 1, 0o1666); libc.msgget(key, 0o1666)\nlibc.mq_open(b'/mark', 0o102, 0o600, 0); attempt(open, '/dev/mqueue/mark', 'w')",
    "sockets with a name": "kept = socket.socket(socket.AF_UNIX); kept.bind(chr(0) + 'mark'); kept.listen(); server = socket.create_server(('127.0.0.1', 4747))\nif os.fork() == 0: os.setsid(); time.sleep(1000)",
    "a name of the machine, mounts, limits": "libc.sethostname(b'mark', 4); libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0); libc.prlimit(1, 7, (ctypes.c_long * 2)(3, 3), None); attempt(os.setpriority, 0, 1, 19); os.umask(0o777)",
    "signals for the first process": "for n in range(1, 65): attempt(os.kill, 1, n)",
}
"""What a user did to its place, and to the next one's."""

HONEST = """
import os, socket, subprocess, tempfile
for folder in ("/sandbox", "/tmp", "/dev/shm"): open(folder + "/x", "wb", 0).write(b"x" * 7 * 2**20)
server = socket.create_server(("127.0.0.1", 4747))
socket.create_connection(("127.0.0.1", 4747)).sendall(b"hello")
print(server.accept()[0].recv(5).decode(), subprocess.run(["echo", "fine"], capture_output=True, text=True).stdout.strip())
"""


@pytest.fixture(scope="module", params=["bubblewrap", "bubblewrap as an ordinary user", "docker"])
def place(request: pytest.FixtureRequest) -> Iterator[BackendName]:
    name, _, ordinary = request.param.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        if ordinary:
            as_an_ordinary_user(patch)
        yield request.getfixturevalue(name)


@pytest.fixture(scope="module")
async def sandbox(place: BackendName) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend=place, limits=Limits(timeout_s=60, disk_mb=8, file_mb=8)) as sandbox:
        yield sandbox


async def look(sandbox: Sandbox) -> dict[str, Any]:
    done = await sandbox.run_python(code=LOOK)
    assert done.ok, done
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("harm", HARM)
async def test_the_next_user_finds_the_place_as_the_first_did(sandbox: Sandbox, harm: str) -> None:
    await sandbox.reset()
    new = await look(sandbox)
    await sandbox.run_python(code=PREAMBLE + HARM[harm], timeout_s=0.5 if "bomb" in harm else 60)
    await sandbox.start(["sleep", "1000"])
    await sandbox.reset()
    assert await look(sandbox) == new
    done = await sandbox.run_python(code=HONEST)
    assert done.stdout == b"hello fine\n", done


async def test_harm_is_seen_where_there_is_no_reset(sandbox: Sandbox) -> None:
    """The test above can fail: the things that it looks at do change."""
    await sandbox.reset()
    new = await look(sandbox)
    await sandbox.run_python(code=PREAMBLE + HARM["files and links"])
    async with await sandbox.start(["sleep", "1000"]):
        changed = await look(sandbox)
    assert {name for name in new if new[name] != changed[name]} == {*FOLDERS, "processes"}


async def test_no_memory_of_an_earlier_user_s_is_the_next_one_s(sandbox: Sandbox) -> None:
    secret = b"of-some" + b"body-else"  # in two parts, which the search joins as it runs
    await sandbox.write("secret", secret * 1000)
    await sandbox.run_python(code="input()", stdin=secret * 1000)
    await sandbox.reset()
    search = """
found, word = 0, b"".join((b"of-some", b"body-else"))
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in list(maps):
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if line.split()[1].startswith("rw"):
            try:
                memory.seek(start)
                found += memory.read(end - start).count(word * 2)
            except (OSError, ValueError, OverflowError): pass
print(found)
"""
    assert (await sandbox.run_python(code=search)).stdout == b"0\n"


async def test_a_program_that_is_reset_says_nothing_more(sandbox: Sandbox) -> None:
    process = await sandbox.start(["sh", "-c", "while :; do echo x; sleep 0.01; done"])
    assert await process.read_line() == b"x\n"
    await sandbox.reset()
    with anyio.move_on_after(0.1) as waited:
        await process.wait()
    assert waited.cancelled_caught
    assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"
