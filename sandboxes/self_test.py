"""A program that is known to work, so that a sandbox in which it does not is found by us and not by somebody's verdict."""

from __future__ import annotations

from agentrl.errors import SandboxError
from agentrl.sandboxes.sandbox import Sandbox

USERS_BETWEEN = 200
"""After so many users a sandbox is tested, and after each with whom something unusual happened."""
TIMEOUT_S = 20.0

PROGRAM = """
import os, socket, subprocess, sys
for folder in (os.getcwd(), '/tmp', '/dev/shm'):
    assert os.listdir(folder) == [name for name in ('input.txt',) if folder == os.getcwd()], folder
    with open(folder + '/made', 'x') as file: file.write('made')
    os.mkdir(folder + '/folder')
assert open('input.txt').read() == 'input'
server = socket.create_server(('127.0.0.1', 4747))
client = socket.create_connection(server.getsockname())
client.sendall(b'over the loopback')
assert server.accept()[0].recv(100) == b'over the loopback'
done = subprocess.run([sys.executable or 'python3', '-c', 'print(6 * 7)'], capture_output=True, text=True)
assert done.stdout == '42\\n', done
print(input(), os.getpriority(os.PRIO_PROCESS, 0))
"""


async def works(sandbox: Sandbox) -> bool:
    """Return whether a sandbox does for a program what it should.

    It needs a reset afterwards.

    Raises:
        SandboxLostError: The sandbox is gone.
    """
    try:
        await sandbox.write("input.txt", "input")
        done = await sandbox.run_python(code=PROGRAM, stdin=b"read\n", timeout_s=TIMEOUT_S)
    except SandboxError:
        return False
    return done.ok and done.stdout == b"read %d\n" % sandbox.priority
