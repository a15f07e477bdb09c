"""Rootless Podman: a service of a user that is made for these tests, and removed after."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes import SandboxSpec, open_sandbox
from agentrl.sandboxes.backends.podman import Podman
from agentrl.testing import check_backend
from tests.components import missing

pytestmark = pytest.mark.anyio
BASE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl/sandbox-base.tar"
LOOK = """
import mmap, os
print(sorted(path for path, _, _ in os.walk("/") if not path.startswith("/proc") and os.access(path, os.W_OK)))
try:
    mmap.mmap(os.open("/dev/zero", os.O_RDWR), 1 << 20)
except OSError:
    print("nothing maps /dev/zero")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The address of a Podman service of an ordinary user, with the default image."""
    if os.geteuid() != 0:
        missing("making a user needs root")
    for program in ("podman", "newuidmap", "runc", "useradd"):
        if shutil.which(program) is None:
            missing(f"{program} is not installed (scripts/start_sandboxes.sh)")
    if not BASE.exists():
        missing(f"{BASE} is not here (scripts/start_sandboxes.sh makes it)")
    user, home = f"agentrl{uuid.uuid4().hex[:8]}", Path(tempfile.mkdtemp(prefix="agentrl-podman-", dir="/var/tmp"))
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), user], check=True)
    uid = int(subprocess.run(["id", "-u", user], check=True, capture_output=True, text=True).stdout)
    process: subprocess.Popen[bytes] | None = None
    try:
        settings = home / ".config/containers"
        settings.mkdir(parents=True)
        (settings / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
        # crun refuses a machine that has both versions of control groups.
        (settings / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
        subprocess.run(["chown", "-R", f"{user}:", str(home)], check=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        podman = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "podman"]
        with open(BASE, "rb") as base:
            load = [*podman, "import", "-", "localhost/agentrl/sandbox:latest"]
            done = subprocess.run(load, stdin=base, capture_output=True, env=environment, cwd="/")
        assert done.returncode == 0, done.stderr.decode()
        socket = home / "service.sock"
        with open(home / "log", "wb") as log:
            serve = [*podman, "system", "service", "--time", "0", f"unix://{socket}"]
            process = subprocess.Popen(serve, stdout=log, stderr=log, env=environment, cwd="/", start_new_session=True)
        for _ in range(100):
            if socket.exists():
                break
            time.sleep(0.1)
        yield f"unix://{socket}"
    finally:
        for _ in range(50):
            left = processes_of(uid)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.1)
        if process is not None:
            process.wait(20)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(str(home)):
                subprocess.run(["umount", "--lazy", place], check=False)
        subprocess.run(["userdel", user], check=True)
        shutil.rmtree(home)


def processes_of(uid: int) -> list[int]:
    """Those of a user that are not dead already."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid == uid and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
    return found


@pytest.fixture
def podman(service: str, monkeypatch: pytest.MonkeyPatch) -> Podman:
    monkeypatch.setenv("CONTAINER_HOST", service)
    return Podman()


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_rootless_podman_keeps_the_contract(podman: Podman) -> None:
    await check_backend("podman")
    assert any("socket buffers" in hole for hole in await podman.holes())


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_nothing_but_the_folders_of_a_user_can_be_written_to(podman: Podman) -> None:
    async with open_sandbox(backend=podman) as sandbox:
        done = await sandbox.run_python(code=LOOK)
        cores = await sandbox.run_python(code="import os; print(len(os.sched_getaffinity(0)))")
    folders = "['/dev/mqueue', '/dev/shm', '/sandbox', '/tmp']"
    assert done.stdout.decode() == f"{folders}\nnothing maps /dev/zero\n"
    assert cores.stdout == b"1\n"


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_rootless_podman_cannot_bound_is_refused(podman: Podman) -> None:
    with pytest.raises(SandboxError, match=r"cpus = 0.5: a rootless Podman bounds no part of a core"):
        await podman.prepare(SandboxSpec(cpus=0.5))
    with pytest.raises(SandboxError, match=r"runtime = 'runsc': .* containers.conf"):
        await podman.prepare(SandboxSpec(runtime="runsc"))


async def test_a_service_that_is_not_there_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", "unix:///nowhere.sock")
    with pytest.raises(
        SandboxError, match=r"no Podman service answers at unix:///nowhere.sock .*podman system service"
    ):
        await Podman().prepare(SandboxSpec())
    monkeypatch.setenv("CONTAINER_HOST", "ssh://me@there/run/podman.sock")
    with pytest.raises(SandboxError, match=r"CONTAINER_HOST = 'ssh:.*unix:// socket"):
        await Podman().prepare(SandboxSpec())
