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

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import Docker, SandboxSpec, open_sandbox
from agentrl.sandboxes.backends.docker_connection import engine_address
from agentrl.testing import check_backend
from tests.components import missing

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
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
    command = ["dockerd", "--host", f"tcp://127.0.0.1:{port}", *tls, *own, "--bridge=none", "--iptables=false"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=certificates, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(300):
            if "API listen on" in (folder / "log").read_text():
                break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"tcp://127.0.0.1:{port}", certificates, process
    finally:
        ended(process)
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


async def test_an_engine_over_tls_keeps_the_contract(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    needs("dockerd", "openssl")
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
            assert engine_address().is_here
            subprocess.run(["docker", "context", "use", "far"], check=True, capture_output=True)
            assert engine_address().url == address
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
                with anyio.fail_after(20), pytest.raises(SandboxLostError):
                    await sandbox.run(["sleep", "100"], timeout_s=100)
