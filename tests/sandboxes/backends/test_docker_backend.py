"""Containers: how they are locked down, and that none outlives the process it belongs to."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import docker as docker_sdk
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import SandboxError
from agentrl.sandboxes import BackendName, Docker, IOTest, Limits, SandboxSpec, grade, open_pool, open_sandbox
from agentrl.sandboxes.backends.docker_connection import find_engine
from agentrl.sandboxes.backends.docker_images import IMAGES, follow
from agentrl.sandboxes.backends.leftovers import LABEL
from agentrl.sandboxes.container import ContainerSpec, open_container
from tests.components import missing, wait_until

pytestmark = pytest.mark.anyio
PID_FILE = Path("/var/run/docker.pid")
CONTAINERD_PID_FILE = Path("/var/run/docker/containerd/containerd.pid")


def containers() -> list[Any]:
    with closing(docker_sdk.from_env()) as client:
        return client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)


async def test_a_container_is_locked_down(docker: BackendName) -> None:
    limits = Limits(memory_mb=100, disk_mb=10, processes=20)
    async with open_sandbox(backend=docker, limits=limits):
        (container,) = [c for c in await in_thread(containers) if str(os.getpid()) in c.labels[LABEL].split(":")]
        host, config = container.attrs["HostConfig"], container.attrs["Config"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]  # and so Docker's own seccomp and AppArmor profiles
    assert host["Privileged"] is False
    assert host["PidsLimit"] == 21
    assert host["CpuQuota"] == host["CpuPeriod"]
    assert host["Memory"] == host["MemorySwap"] == (100 + 10 + 64) * 2**20
    assert {path: "size=10485760" in options for path, options in host["Tmpfs"].items()} == dict.fromkeys(
        ("/sandbox", "/tmp", "/dev/shm"), True
    )
    assert not host["Binds"]
    assert host["AutoRemove"] is True
    assert int(config["User"].partition(":")[0]) >= 10_000


async def test_programs_are_looked_for_where_the_image_has_them(docker: BackendName) -> None:
    """As in images of conda, whose python3 is on the PATH of the image alone."""
    name = "agentrl/test-path"
    lines = (
        "FROM agentrl/sandbox",
        "USER root",
        "RUN mkdir /opt/own && printf '#!/bin/sh\\necho own' > /opt/own/tool && chmod 755 /opt/own/tool",
        "ENV PATH=/opt/own:/usr/local/bin:/usr/bin:/bin",
    )

    def build() -> None:
        with find_engine().client() as client:
            follow(client.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=name, decode=True, rm=True), print)

    await in_thread(build)
    async with open_sandbox(backend=docker, image=name) as sandbox:
        assert (await sandbox.run(["tool"])).stdout == b"own\n"
        assert (await sandbox.run_python(code="import subprocess; subprocess.run(['tool'])")).stdout == b"own\n"
    async with open_container(ContainerSpec(image=name)) as container:
        assert (await container.run(["tool"], env={"A": "b"})).stdout == b"own\n"


@pytest.mark.soak
async def test_sandboxes_of_a_killed_process_are_gone_by_the_next_start(docker: BackendName, tmp_path: Path) -> None:
    """SIGKILL closes the input of its containers, which end by themselves; a start removes what did not."""
    script = f"""
import anyio
from agentrl.sandboxes import open_pool
async def main():
    async with open_pool(backend="docker", size=2) as pool:
        async with pool.take(2):
            open({str(tmp_path / "ready")!r}, "w").write("")
            await anyio.sleep_forever()
anyio.run(main)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        await wait_until((tmp_path / "ready").exists, timeout_s=60)
        theirs = {c.id for c in await in_thread(containers) if f":{process.pid}:" in c.labels[LABEL]}
        assert len(theirs) == 2
        # One of them cannot end by itself: it is frozen.
        await in_thread(lambda: on_container(next(iter(theirs)), "pause"))
    finally:
        process.kill()
        process.wait()
    async with open_sandbox(backend=docker):
        with anyio.fail_after(40):
            while theirs & {c.id for c in await in_thread(containers)}:
                await anyio.sleep(0.1)


@pytest.mark.soak
async def test_the_default_image_is_built_where_it_is_missing(docker: BackendName) -> None:
    # The Dockerfile with a base that is here: the one it names is in a registry.
    progress: list[str] = []

    def build() -> bool:
        with closing(docker_sdk.from_env()) as client:
            if not client.images.list("agentrl/sandbox-base"):
                return False
            arguments = {"BASE": "agentrl/sandbox-base"}
            events = client.api.build(
                path=str(IMAGES), tag="agentrl/test-build", rm=True, decode=True, buildargs=arguments
            )
            follow(events, progress.append)
            return True

    if not await in_thread(build):
        missing("the image agentrl/sandbox-base is not here (scripts/start_sandboxes.sh makes it)")
    try:
        async with open_sandbox(backend=docker, image="agentrl/test-build") as sandbox:
            done = await sandbox.run(["python3", "-c", "import numpy, pytest; print(numpy.arange(3).sum())"])
            assert done.stdout == b"3\n"
    finally:
        await in_thread(remove_test_build)
    assert any(line.startswith("Step 1") for line in progress)


async def test_a_pull_shows_its_steps_and_raises_its_errors() -> None:
    sizes = [{"status": "Downloading", "id": "abc", "progressDetail": {"current": n, "total": 100}} for n in range(101)]
    progress: list[str] = []
    follow([{"status": "Pulling from x"}, *sizes, {"status": "Pull complete", "id": "abc"}], progress.append)
    assert progress == ["Pulling from x", "abc: Pull complete"]
    with pytest.raises(SandboxError, match="no such manifest"):
        follow([{"error": "no such manifest"}], progress.append)


def remove_test_build() -> None:
    with closing(docker_sdk.from_env()) as client:
        client.images.remove("agentrl/test-build")


def on_container(container_id: str, action: str) -> None:
    with closing(docker_sdk.from_env()) as client:
        getattr(client.containers.get(container_id), action)()


def dockerd() -> int:
    """The process of an engine that this test may restart."""
    if os.geteuid() == 0 and PID_FILE.exists():
        return int(PID_FILE.read_text())
    return missing("no dockerd that this user may restart (scripts/start_sandboxes.sh starts one)")


@pytest.mark.soak
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the SDK, whose engine dies as it connects
async def test_a_restart_of_the_engine_costs_only_retries(docker: BackendName, how: signal.Signals) -> None:
    engine = dockerd()
    command = Path(f"/proc/{engine}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    done = 0

    async def restart() -> None:
        with anyio.fail_after(60):
            while done < 5:
                await anyio.sleep(0.01)
        os.kill(engine, how)
        await wait_until(lambda: not _alive(engine), timeout_s=60)
        await anyio.sleep(1)
        for file in (
            PID_FILE,
            CONTAINERD_PID_FILE,
        ):  # of processes that may be dead and not reaped: no engine starts beside them
            file.unlink(missing_ok=True)
        with open("/tmp/agentrl-dockerd.log", "a") as log:
            await anyio.run_process(["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with anyio.fail_after(60):
            while True:
                with suppress(SandboxError):
                    await in_thread(find_engine)
                    return
                await anyio.sleep(0.1)

    async def verdict(index: int) -> None:
        nonlocal done
        source = "import time\ntime.sleep(0.05)\nprint(int(input()) * 2)"
        assert (await grade(source, [IOTest(stdin=f"{index}", stdout=f"{2 * index}")], pool=pool)).passed
        done += 1

    async with open_pool(backend=docker, size=2) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            for index in range(40):
                tasks.start_soon(verdict, index)
        assert done == 40
        assert pool.metrics.lost >= 1
    await Docker().prepare(SandboxSpec())
    with anyio.fail_after(40):
        while await in_thread(containers):
            await anyio.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
async def test_a_sandbox_says_why_it_is_lost(docker: BackendName) -> None:
    backend = Docker()
    await backend.prepare(SandboxSpec())
    async with backend.start(SandboxSpec()) as sandbox:
        (container,) = [c for c in await in_thread(containers) if f":{os.getpid()}:" in c.labels[LABEL]]
        started = time.monotonic()

        async def kill() -> None:
            await anyio.sleep(0.2)
            await in_thread(lambda: on_container(container.id, "kill"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            with pytest.raises(SandboxError, match="the sandbox is gone: its container ended"):
                await sandbox.run(["sleep", "30"], timeout_s=60)
        assert time.monotonic() - started < 25, "the command would have slept for 30"
        with pytest.raises(SandboxError, match="the sandbox is gone"):
            await sandbox.run(["true"])


async def test_an_engine_that_is_not_reached_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, remedy in (
        ("unix:///nowhere.sock", "start one, or set DOCKER_HOST"),
        ("ssh://user@host", "forward its socket, `ssh -nNT -L"),
    ):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(SandboxError, match=remedy):
            await Docker().prepare(SandboxSpec())
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    with pytest.raises(SandboxError, match="no Docker context 'elsewhere'"):
        await Docker().prepare(SandboxSpec())
