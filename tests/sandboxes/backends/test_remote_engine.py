"""Docker engines elsewhere: a second engine over TLS, and the running one over a real sshd, each on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import BackendName, Docker, SandboxSpec, open_sandbox
from agentrl.sandboxes.backends.docker_connection import engine_address
from agentrl.sandboxes.backends.owner import is_dead, owner
from agentrl.testing import check_backend
from tests.components import missing, wait_until

pytestmark = pytest.mark.anyio
BASE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl/sandbox-base.tar"


def needs(*programs: str) -> None:
    if os.geteuid() != 0:
        missing("a second engine needs root")
    for program in programs:
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            missing(f"{program} is not installed (scripts/start_sandboxes.sh)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def certify(folder: Path, name: str, extension: str) -> None:
    run = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem"]
    subprocess.run([*run, "-out", f"{name}.csr"], cwd=folder, check=True, capture_output=True)
    (folder / "extensions").write_text(extension)
    sign = ["openssl", "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem"]
    sign += ["-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.pem"]
    subprocess.run(sign, cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    folder.mkdir()
    authority = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca"]
    command = [*authority, "-keyout", "ca-key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    certify(folder, "server", "subjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth\n")
    certify(folder, "cert", "extendedKeyUsage = clientAuth\n")
    (folder / "cert-key.pem").rename(folder / "key.pem")


def ended(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def engine_over_tls(folder: Path) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """A second engine, with files of its own, that listens on TLS and nothing else: its address, certificates and process."""
    certificates, port = folder / "certificates", free_port()
    make_certificates(certificates)
    own = ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")]
    tls = ["--tlsverify", "--tlscacert", "ca.pem", "--tlscert", "server.pem", "--tlskey", "server-key.pem"]
    # Without a bridge of its own it would take away the one of the first engine, also where it is told to have none.
    bridge = f"agentrl{port}"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    subprocess.run(["ip", "addr", "add", "10.231.0.1/24", "dev", bridge], check=True)
    command = ["dockerd", "--host", f"tcp://127.0.0.1:{port}", *tls, *own, "--bridge", bridge, "--iptables=false"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=certificates, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while "API listen on" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"tcp://127.0.0.1:{port}", certificates, process
    finally:
        ended(process)
        subprocess.run(["ip", "link", "delete", bridge], check=False)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(str(folder)):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def variables(**values: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"):
            patch.delenv(name, raising=False)
        for name, value in values.items():
            patch.setenv(name, value)
        yield


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_an_engine_over_tls_keeps_the_contract(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    needs("dockerd", "openssl", "ip")
    if not BASE.exists():
        missing(f"{BASE} is not here (scripts/start_sandboxes.sh makes it)")
    with engine_over_tls(tmp_path_factory.mktemp("tls")) as (address, certificates, engine):
        tls = {"DOCKER_HOST": address, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(certificates)}
        with variables(**tls):
            subprocess.run(["docker", "import", str(BASE), "agentrl/sandbox"], check=True, capture_output=True)
            await check_backend(Docker())
            shown = SandboxSpec(folders=(("/opt/tools", str(tmp_path)),))
            with pytest.raises(SandboxError, match=r"no folder of this machine; put it into the image"):
                await Docker().prepare(shown)
        # A context of the `docker` command is the same, and so is its choice.
        with variables(DOCKER_CONFIG=str(tmp_path)):
            (tmp_path / "config.json").write_text("{}")
            files = f"ca={certificates}/ca.pem,cert={certificates}/cert.pem,key={certificates}/key.pem"
            make = ["docker", "context", "create", "far", "--docker", f"host={address},{files}"]
            subprocess.run(make, check=True, capture_output=True)
            assert (await in_thread(engine_address)).is_here
            subprocess.run(["docker", "context", "use", "far"], check=True, capture_output=True)
            assert (await in_thread(engine_address)).url == address
            async with open_sandbox(backend="docker") as sandbox:
                assert (await sandbox.run(["echo", "there"])).stdout == b"there\n"
            with variables(DOCKER_CONTEXT="nowhere"), pytest.raises(SandboxError, match="no Docker context 'nowhere'"):
                await Docker().prepare(SandboxSpec())
        # Errors name what to look at.
        with variables(DOCKER_HOST=address), pytest.raises(SandboxError, match=r"it speaks TLS: set DOCKER_TLS_VERIFY"):
            await Docker().prepare(SandboxSpec())
        make_certificates(tmp_path / "others")
        with variables(**{**tls, "DOCKER_CERT_PATH": str(tmp_path / "others")}):
            with pytest.raises(SandboxError, match=r"certificate.*DOCKER_CERT_PATH"):
                await Docker().prepare(SandboxSpec())
        with variables(**{**tls, "DOCKER_CERT_PATH": str(tmp_path / "none")}):
            with pytest.raises(SandboxError, match=r"DOCKER_CERT_PATH"):
                await Docker().prepare(SandboxSpec())
        # An engine that dies takes its sandboxes with it, in the middle of a run, and nothing else.
        with variables(**tls):
            async with open_sandbox(backend="docker") as sandbox, anyio.create_task_group() as tasks:

                async def die() -> None:
                    await anyio.sleep(0.3)
                    os.kill(engine.pid, signal.SIGKILL)

                tasks.start_soon(die)
                with anyio.fail_after(60), pytest.raises(SandboxLostError):
                    await sandbox.run(["sleep", "100"], timeout_s=100)


@contextmanager
def engine_over_ssh(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The running engine behind an sshd of its own, with keys made for it: its address, and sshd. `ssh` is given its configuration."""
    port = free_port()
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True, capture_output=True)
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
    )
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (folder / "bin/ssh").chmod(0o755)
    with open(folder / "log", "wb") as log:
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(100):
            if "Server listening" in (folder / "log").read_text():
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"ssh://root@127.0.0.1:{port}", process
    finally:
        ended(process)


def descendants(pid: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [further for child in children for further in descendants(child)]


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_an_engine_over_ssh_keeps_the_contract(docker: BackendName, tmp_path: Path) -> None:
    needs("sshd", "ssh", "ssh-keygen")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    with engine_over_ssh(tmp_path) as (address, sshd), variables(DOCKER_HOST=address, PATH=path):
        await check_backend(Docker())
        with variables(DOCKER_HOST=address.replace("root@", "nobody@"), PATH=path):
            with pytest.raises(SandboxError, match=r"Permission denied.*try `ssh nobody@127.0.0.1 docker version`"):
                await Docker().prepare(SandboxSpec())
        # A connection that breaks takes its sandbox with it, in the middle of a run, and nothing else: the next one starts.
        async with open_sandbox(backend="docker") as sandbox, anyio.create_task_group() as tasks:

            async def break_off() -> None:
                await anyio.sleep(0.3)
                for pid in descendants(sshd.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

            tasks.start_soon(break_off)
            with anyio.fail_after(60), pytest.raises(SandboxLostError):
                await sandbox.run(["sleep", "100"], timeout_s=100)
        async with open_sandbox(backend="docker") as sandbox:
            assert (await sandbox.run(["true"])).ok
        await wait_until(lambda: not descendants(sshd.pid), timeout_s=60)


def test_a_machine_of_the_same_name_is_not_taken_for_dead() -> None:
    host, _, pid, started = owner().split(":")
    other = f"{host}:another-boot:{pid}:{started}"
    assert is_dead(other)
    assert not is_dead(other, same_boot=True)
    assert is_dead(owner().rpartition(":")[0] + ":1", same_boot=True)
